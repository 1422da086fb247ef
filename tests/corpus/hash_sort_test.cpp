#include "megalith/corpus/hash_sort.h"

#include <gtest/gtest.h>

#include "megalith/base/philox.h"

namespace megalith::corpus {
namespace {

struct Entry {
  std::uint64_t hash = 0, number = 0;
  auto operator<=>(const Entry&) const = default;
};

/// Hashes of a few values each, so that some are equal; `bits` are not zero.
std::vector<Entry> entries(std::uint64_t count, std::uint64_t values, std::uint64_t bits) {
  std::vector<Entry> all;
  const RandomSite site{.seed = count ^ values};
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t value = site.word(i) % values;
    all.push_back({(value * 0x9e3779b97f4a7c15ULL) & bits, site.word(count + i)});
  }
  return all;
}

TEST(HashSort, SortsAsStdSortDoes) {
  for (const std::uint64_t bits : {~std::uint64_t{0}, std::uint64_t{0xFF}, std::uint64_t{0xFF} << 56, std::uint64_t{0}})
    for (const std::uint64_t values : {1, 3, 1000, 1000000000})
      for (const std::uint64_t count : {0, 1, 2, 255, 257, 3000, 100000}) {
        std::vector<Entry> got = entries(count, values, bits), want = got, parallel = got;
        std::sort(want.begin(), want.end());
        const auto key = [](const Entry& entry) { return entry.hash; };
        sort_by_hash(std::span(got), key);
        ASSERT_EQ(got, want) << count << " of " << values << ", bits " << bits;
        sort_by_hash_in_parallel(std::span(parallel), key, 3);
        ASSERT_EQ(parallel, want) << count << " of " << values << ", bits " << bits;
      }
}

}  // namespace
}  // namespace megalith::corpus
