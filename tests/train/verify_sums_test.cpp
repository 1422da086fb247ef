#include "megalith/train/verify_sums.h"

#include <gtest/gtest.h>

// What `verify` prints of a gradient whose sum over ranks is wrong: docs/verify.md has the planted bugs.
namespace megalith {
namespace {

using train::GradientSum;
using train::RankOps;

const std::string kNorm = "layers.0.norm1.weight", kMatrix = "layers.0.mlp.up.weight";
constexpr double kBand = 1e-12;

/// A rank whose passes give `values` in two microbatches, as rows [first, first + n) of a parameter of `rows`.
RankOps rank_with(const grid::PerAxis& at, const std::string& name, const grid::Placement& placement, Index rows,
                  Index first, const std::vector<double>& values) {
  RankOps rank{.on_dense = at, .on_experts = at};
  rank.placements[name] = placement;
  const auto count = static_cast<Index>(values.size());
  for (const double part : {0.25, 0.75}) {
    train::OpRecord& op = rank.ops.emplace_back();
    op.results = {{.gradient_of = name, .slice = {name, {rows}, {first}, {count}}, .shape = {count}, .values = values}};
    for (double& value : op.results[0].values) value *= part;
  }
  return rank;
}

/// tp 2, dp 2: a norm with sequence parallelism, so all four ranks have a part of its gradient.
std::vector<RankOps> ranks_of_norm() {
  std::vector<RankOps> ranks;
  for (int dp = 0; dp < 2; ++dp)
    for (int tp = 0; tp < 2; ++tp)
      ranks.push_back(rank_with({.tp = tp, .dp = dp}, kNorm, grid::kReplicatedPartial, 3, 0,
                                {1.0 + tp, 10.0 + dp * dp, 100.0 + 7 * tp * dp}));
  return ranks;
}

std::vector<double> times(double factor, std::vector<double> values) {
  for (double& value : values) value *= factor;
  return values;
}

using Names = std::vector<std::string>;

TEST(GradientSums, TheSumOverAllRanksIsRight) {
  const auto found = train::sum_of_gradient(ranks_of_norm(), kNorm, std::vector<double>{6, 42, 407}, kBand);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->is_right(kBand));
  EXPECT_EQ(found->over, (Names{"tp", "dp"}));
}

TEST(GradientSums, AMissingAxisIsNamed) {
  const auto found = train::sum_of_gradient(ranks_of_norm(), kNorm, std::vector<double>{4, 21, 207}, kBand);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->fits);
  EXPECT_FALSE(found->is_right(kBand)) << "of tp rank 1";
  EXPECT_EQ(found->over, Names{"dp"});
  EXPECT_EQ(found->must_be, (Names{"tp", "dp"}));
}

TEST(GradientSums, ASumTakenTwiceAndAMeanAreNamed) {
  const std::vector<double> right = {6, 42, 407};
  for (const double factor : {2.0, 0.25}) {
    const auto found = train::sum_of_gradient(ranks_of_norm(), kNorm, times(factor, right), kBand);
    ASSERT_TRUE(found);
    EXPECT_FALSE(found->is_right(kBand));
    EXPECT_EQ(found->over, found->must_be);
    EXPECT_NEAR(found->times, factor, kBand);
  }
}

TEST(GradientSums, ANumberOfAnotherSourceFitsNoSum) {
  const auto found = train::sum_of_gradient(ranks_of_norm(), kNorm, std::vector<double>{6, 42, 408}, kBand);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->fits);
  EXPECT_FALSE(found->is_right(kBand));
}

TEST(GradientSums, SlicesOverTpAreNoTermsOfASum) {
  std::vector<RankOps> ranks;
  for (int dp = 0; dp < 2; ++dp)
    for (int tp = 0; tp < 2; ++tp)
      ranks.push_back(
          rank_with({.tp = tp, .dp = dp}, kMatrix, grid::kSharded, 4, 2 * tp, {1.0 + dp, 5.0 + tp * (1 + dp)}));
  const auto right = train::sum_of_gradient(ranks, kMatrix, std::vector<double>{3, 10, 3, 13}, kBand);
  ASSERT_TRUE(right);
  EXPECT_TRUE(right->is_right(kBand));
  EXPECT_EQ(right->must_be, Names{"dp"});
  const auto own = train::sum_of_gradient(ranks, kMatrix, std::vector<double>{2, 5, 2, 7}, kBand);
  ASSERT_TRUE(own);
  EXPECT_TRUE(own->fits);
  EXPECT_EQ(own->over, Names()) << "what the second rank of dp gave";
  EXPECT_FALSE(train::sum_of_gradient(ranks, kNorm, std::vector<double>{1, 2, 3}, kBand)) << "no rank has it";
}

TEST(GradientSums, AxesOfTheExpertGridHaveItsNames) {
  std::vector<RankOps> ranks;
  for (int dp = 0; dp < 2; ++dp)
    for (int ep = 0; ep < 2; ++ep)
      ranks.push_back(
          rank_with({.ep = ep, .dp = dp}, kMatrix, {.grid = grid::GridKind::expert}, 2, ep, {1.0 + ep + dp}));
  const auto found = train::sum_of_gradient(ranks, kMatrix, std::vector<double>{6, 10}, kBand);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->over, Names{"edp"});
  EXPECT_NEAR(found->times, 2, kBand);
}

}  // namespace
}  // namespace megalith
