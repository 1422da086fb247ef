#include "megalith/data/token_source.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

#include "tests/io/temp_dir.h"

namespace megalith::data {
namespace {

using Ids = std::vector<std::int32_t>;

Ids counting(std::int32_t first, std::size_t count) {
  Ids ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

Ids copied(const TokenSource& source, Index first, std::size_t count) {
  Ids out(count, -7);
  source.copy(first, out);
  return out;
}

TokenSourcePtr on_disk(const TempDir& dir, const Ids& ids, Index vocab_size) {
  const auto fs = io::posix_fs();
  IndexedDatasetBuilder builder(*fs, dir / "a", {.vocab_size = 50000});
  for (std::size_t i = 0; i < ids.size(); ++i) {
    builder.add({&ids[i], 1});
    if (i % 7 == 6 || i + 1 == ids.size()) builder.end_document();
  }
  builder.finish();
  return indexed_source(IndexedDataset(*fs, dir / "a"), vocab_size);
}

TEST(TokenSource, AllKindsGiveTheSameTokens) {
  const TempDir dir;
  const Ids ids = counting(0, 1000);
  const std::vector<TokenSourcePtr> sources = {
      memory_source("m", ids, 5000), on_disk(dir, ids, 5000),
      joined_source({memory_source("a", counting(0, 1), 5000), memory_source("b", {}, 5000),
                     memory_source("c", counting(1, 400), 5000), memory_source("d", counting(401, 599), 5000)})};
  for (const TokenSourcePtr& source : sources) {
    EXPECT_EQ(source->num_tokens(), 1000);
    for (const Index first : {0, 1, 6, 399, 400, 401, 402, 990})
      for (const std::size_t count : {0, 1, 2, 10})
        EXPECT_EQ(copied(*source, first, count), counting(static_cast<std::int32_t>(first), count)) << source->name();
    EXPECT_EQ(copied(*source, 0, 1000), ids);
    EXPECT_EQ(copied(*source, 1000, 0), Ids{});
    EXPECT_EQ(source->fingerprint(), sources.front()->fingerprint()) << source->name();
    EXPECT_THROW(copied(*source, 999, 2), ShapeError);
    EXPECT_THROW(copied(*source, -1, 1), ShapeError);
  }
}

TEST(TokenSource, FingerprintTellsCorporaApart) {
  Ids ids(100000, 3);
  const std::uint64_t hash = memory_source("m", ids, 10)->fingerprint();
  ids.back() = 4;
  EXPECT_NE(memory_source("m", ids, 10)->fingerprint(), hash);
  ids.back() = 3;
  ids.push_back(3);
  EXPECT_NE(memory_source("m", ids, 10)->fingerprint(), hash);
  EXPECT_NE(memory_source("m", {}, 10)->fingerprint(), memory_source("m", {0}, 10)->fingerprint());
}

TEST(TokenSource, RefusesIdsOfAnotherVocabulary) {
  const TempDir dir;
  const auto source = on_disk(dir, counting(40, 20), 50);
  EXPECT_EQ(copied(*source, 0, 10), counting(40, 10));
  const std::string want =
      str("[", (dir / "a.bin").string(),
          "] token 10 = 50: must be below vocab_size 50; the file was made with another tokenizer");
  EXPECT_EQ(error_of<InputError>([&] { copied(*source, 5, 10); }), want);
  const auto joined = joined_source({memory_source("m", {1, 2, 3}, 50), source});
  EXPECT_EQ(error_of<InputError>([&] { copied(*joined, 0, 23); }), want) << "the place in its own file";
  EXPECT_THROW(joined_source({memory_source("m", {1}, 50), memory_source("n", {1}, 60)}), InternalError);
}

}  // namespace
}  // namespace megalith::data
