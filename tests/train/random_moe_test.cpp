#include "tests/train/random_moe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megalith {
namespace {

// A sample of what the program moe_fuzz does for as long as one likes.
TEST(RandomMoe, GridsAgreeWithOneRankOnRepeatedLetters) {
  int compared = 0;
  for (std::uint64_t seed = 0; compared < 40; ++seed) {
    ASSERT_LT(seed, 1000u) << "nearly all recipes are refused";
    const auto found = support::try_random_moe(seed);
    if (!found) continue;
    ++compared;
    EXPECT_THAT(*found, ::testing::IsEmpty()) << seed << "\n" << config::to_toml(support::random_moe(seed).many);
  }
}

}  // namespace
}  // namespace megalith
