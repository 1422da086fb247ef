#include "megalith/corpus/external_sort.h"

#include <gtest/gtest.h>

#include "megalith/base/philox.h"
#include "megalith/corpus/union_find.h"

#include "tests/io/temp_dir.h"

namespace megalith::corpus {
namespace {

using Numbers = std::vector<std::uint64_t>;

TEST(ExternalSort, SortsMoreThanMemoryHolds) {
  TempDir dir;
  const auto fs = io::posix_fs();
  // 1 MiB holds 131,072 numbers and merges 8 runs at a time: two million numbers take 16 runs and two passes.
  for (const std::uint64_t count : {0, 1, 1000, 131072, 131073, 2000000}) {
    ExternalSort<std::uint64_t> sort(*fs, dir / "sort", 1 << 20);
    const RandomSite site{.seed = count};
    Numbers want, got;
    for (std::uint64_t i = 0; i < count; ++i) {
      want.push_back(site.word(i) % 100000);
      sort.add(want.back());
    }
    std::sort(want.begin(), want.end());
    sort.finish([&](std::uint64_t number) { got.push_back(number); });
    EXPECT_EQ(got, want) << count;
  }
  EXPECT_TRUE(fs->list(dir.path()).empty()) << "runs are removed";
}

TEST(ExternalSort, DropsRepeatsWithinAndAcrossRuns) {
  TempDir dir;
  const auto fs = io::posix_fs();
  ExternalSort<std::uint64_t, Repeats::drop> sort(*fs, dir / "sort", 1 << 20);
  for (std::uint64_t i = 0; i < 400000; ++i) sort.add(i * 7919 % 1000);
  Numbers got;
  sort.finish([&](std::uint64_t number) { got.push_back(number); });
  ASSERT_EQ(got.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(got.begin(), got.end()));
}

TEST(Merge, TakesEqualRecordsFromTheFirstReaderFirst) {
  TempDir dir;
  const auto fs = io::posix_fs();
  const std::vector<Numbers> files{{1, 3, 3, 9}, {}, {2, 3, 10}, {3}};
  std::vector<RecordReader<std::uint64_t>> readers;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto path = dir / std::to_string(i);
    RecordWriter<std::uint64_t> writer(*fs, path);
    for (const std::uint64_t number : files[i]) writer.add(number);
    writer.finish().close();
    readers.emplace_back(*fs, path, 0, writer.records(), 8);
  }
  std::vector<std::pair<std::uint64_t, std::size_t>> got;
  merge(readers, std::less<>(), [&](std::uint64_t number, std::size_t reader) { got.emplace_back(number, reader); });
  EXPECT_EQ(got, (std::vector<std::pair<std::uint64_t, std::size_t>>{
                     {1, 0}, {2, 2}, {3, 0}, {3, 0}, {3, 2}, {3, 3}, {9, 0}, {10, 2}}));
}

TEST(RecordReader, RefusesAFileThatIsCut) {
  TempDir dir;
  const auto fs = io::posix_fs();
  write_all(dir / "cut", std::string(20, 'x'));
  RecordReader<std::uint64_t> reader(*fs, dir / "cut", 0, 3, 1024);
  EXPECT_NE(error_of<InputError>([&] { reader.peek(); }).find("has 20 bytes, must have 24"), std::string::npos);
}

TEST(UnionFind, KnowsASetByItsBestElement) {
  UnionFind sets(6, [](std::uint64_t a, std::uint64_t b) { return a > b; });
  sets.connect(0, 1);
  sets.connect(4, 5);
  EXPECT_EQ(sets.best(0), 1u);
  sets.connect(1, 4);
  for (const std::uint64_t element : {0, 1, 4, 5}) EXPECT_EQ(sets.best(element), 5u);
  EXPECT_EQ(sets.best(2), 2u);
}

}  // namespace
}  // namespace megalith::corpus
