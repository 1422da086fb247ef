#include "megalith/base/text.h"

#include <array>
#include <cstdlib>
#include <limits>

#include <gtest/gtest.h>

#include "megalith/base/hash.h"
#include "megalith/base/philox.h"

namespace megalith {
namespace {

TEST(Text, EditDistance) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

TEST(Text, NearestNameOrNone) {
  constexpr std::array<std::string_view, 3> kNames = {"num_layers", "hidden_size", "num_heads"};
  EXPECT_EQ(nearest("num_layer", kNames), "num_layers");
  EXPECT_EQ(nearest("hiden_size", kNames), "hidden_size");
  EXPECT_EQ(nearest("temperature", kNames), "");
  constexpr std::array<std::string_view, 2> kShort = {"moe", "attn"};
  EXPECT_EQ(nearest("foo", kShort), "");
  EXPECT_EQ(nearest("mo", kShort), "moe");
  EXPECT_EQ(nearest("atn", kShort), "attn");
  EXPECT_EQ(nearest("attention", kShort), "");
}

TEST(Text, HumanBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(Index{5} << 30), "5.00 GiB");
  EXPECT_EQ(microseconds(52.4e-6), "52 us");
  EXPECT_EQ(microseconds(1.2), "1200000 us");
}

TEST(Text, ExactReadsBackAsTheSameNumber) {
  const RandomSite site{.seed = 1};
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double value = site.normal(i) * 1e-3;
    EXPECT_EQ(std::strtod(exact(value).c_str(), nullptr), value);
    const auto narrow = static_cast<float>(value);
    EXPECT_EQ(std::strtof(exact(narrow).c_str(), nullptr), narrow);
  }
  EXPECT_EQ(exact(0.1F), "0.1");
  EXPECT_EQ(exact(double{0.1F}), "0.10000000149011612");
  EXPECT_EQ(exact(-std::numeric_limits<float>::infinity()), "-inf");
}

TEST(Hash, OrderMatters) {
  EXPECT_NE(hash_combine(hash_combine(0, 1), 2), hash_combine(hash_combine(0, 2), 1));
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cULL);
}

}  // namespace
}  // namespace megalith
