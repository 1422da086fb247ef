#include "megalith/grid/parallel_config.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "tests/grid/grid_testing.h"

namespace megalith::grid {
namespace {

std::string resolve_error(const ParallelSizes& sizes) {
  return config_error([&] { resolve(sizes); });
}

TEST(ParallelConfig, ComputesWhatIsNotAsked) {
  const ResolvedSizes got = resolve({.world_size = 48, .tp = 2, .cp = 3, .pp = 2, .ep = 4, .etp = 1});
  EXPECT_EQ(got.dp, 4);
  EXPECT_EQ(got.edp, 6);
  EXPECT_EQ(got.order, kDefaultOrder);
  EXPECT_EQ(resolve({.world_size = 8, .tp = 4}).etp, 4);  // follows tp, not 1
  EXPECT_EQ(resolve({.world_size = 48, .tp = 2, .cp = 3, .pp = 2, .ep = 4, .dp = 4, .etp = 1, .edp = 6}), got);
}

TEST(ParallelConfig, ResolvingTwiceChangesNothing) {
  const ResolvedSizes once =
      resolve({.world_size = 16, .tp = 2, .pp = 4, .vpp = 2, .split_rank = 1, .order = "PP-tp-dp"});
  EXPECT_EQ(once.order, "pp-tp-dp-cp-ep");
  const ResolvedSizes twice = resolve({.world_size = once.world_size,
                                       .tp = once.tp,
                                       .cp = once.cp,
                                       .pp = once.pp,
                                       .ep = once.ep,
                                       .dp = once.dp,
                                       .etp = once.etp,
                                       .edp = once.edp,
                                       .vpp = once.vpp,
                                       .split_rank = once.split_rank,
                                       .order = once.order});
  EXPECT_EQ(twice, once);
  EXPECT_EQ(once.chunks(), 2);
}

// Everything is wrong at first; each step repairs the rule that was reported, and the next one shows.
TEST(ParallelConfig, ReportsTheFirstBrokenRule) {
  ParallelSizes s{.world_size = 16,
                  .tp = 3,
                  .cp = 1,
                  .pp = 1,
                  .ep = 3,
                  .dp = 9,
                  .etp = 1,
                  .edp = 9,
                  .vpp = 0,
                  .split_rank = 7,
                  .order = "xx-tp-tp"};
  const auto code = [&] { return resolve_error(s).substr(0, resolve_error(s).find(':')); };
  EXPECT_EQ(resolve_error(s), "E_SIZE_NOT_POSITIVE: vpp=0: every size must be at least 1");
  s.vpp = 2;
  EXPECT_EQ(code(), "E_WORLD_NOT_DIVISIBLE_DENSE");
  s.tp = 2;
  EXPECT_EQ(code(), "E_PRODUCT_MISMATCH_DENSE");
  s.dp = 8;
  EXPECT_EQ(code(), "E_WORLD_NOT_DIVISIBLE_EXPERT");
  s.ep = 4;
  EXPECT_EQ(code(), "E_PRODUCT_MISMATCH_EXPERT");
  s.edp = 4;
  EXPECT_EQ(code(), "E_VPP_NEEDS_PP");
  s.vpp.reset();
  EXPECT_EQ(resolve_error(s), "E_SPLIT_RANK_RANGE: split rank 7 is outside 1..0 (one stage cannot be split)");
  s.split_rank.reset();
  EXPECT_EQ(code(), "E_ORDER_UNKNOWN_AXIS");
  s.order = "tp-tp";
  EXPECT_EQ(code(), "E_ORDER_DUPLICATE_AXIS");
  s.order = "tp";
  EXPECT_EQ(resolve_error(s), "E_ORDER_MISSING_AXIS: order 'tp': axis 'dp' has size 8 but is not in the order");
  s.order = "tp-dp";  // the dense grid is complete, the expert grid is not
  EXPECT_EQ(resolve_error(s), "E_ORDER_MISSING_AXIS: order 'tp-dp': axis 'ep' has size 4 but is not in the order");
  s = {.world_size = 16, .tp = 4, .pp = 2, .ep = 2, .etp = 1, .order = "tp-pp-ep-dp"};
  EXPECT_EQ(code(), "E_PP_GROUPS_DIFFER");
  s.order = "tp-ep-dp-pp";
  EXPECT_NO_THROW(resolve(s));
}

TEST(ParallelConfig, ProductsTooLargeForAnIntegerAreStillErrors) {
  constexpr int kMax = 2147483647;
  EXPECT_EQ(resolve_error({.world_size = 16, .tp = 65536, .pp = 65536}),
            "E_WORLD_NOT_DIVISIBLE_DENSE: world_size (16) is not divisible by 4294967296 (tp 65536 * cp 1 * pp 65536)");
  EXPECT_EQ(resolve_error({.world_size = 16, .tp = kMax, .cp = kMax, .pp = kMax}),
            "E_WORLD_NOT_DIVISIBLE_DENSE: world_size (16) is not divisible by more than 9223372036854775807 (tp "
            "2147483647 * cp "
            "2147483647 * pp 2147483647)");
  EXPECT_EQ(resolve({.world_size = kMax, .tp = kMax}).dp, 1);
}

// Legality is decided by strides; here it is compared with the lists of groups themselves.
TEST(ParallelConfig, PipelineGroupsDifferExactlyWhenTheListsDo) {
  int legal = 0;
  int illegal = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    std::mt19937_64 random(seed);
    const ParallelSizes asked = random_sizes(random);
    SCOPED_TRACE(str("seed ", seed, ": ", describe(asked)));
    ResolvedSizes sizes;  // unchecked
    sizes.world_size = asked.world_size;
    sizes.tp = asked.tp;
    sizes.cp = asked.cp;
    sizes.pp = asked.pp;
    sizes.dp = asked.world_size / (asked.tp * asked.cp * asked.pp);
    sizes.etp = *asked.etp;
    sizes.ep = asked.ep;
    sizes.edp = asked.world_size / (*asked.etp * asked.ep * asked.pp);
    sizes.order = asked.order;
    const bool same = dense_grid(sizes).groups("pp").all() == expert_grid(sizes).groups("pp").all();
    if (same) {
      EXPECT_NO_THROW(resolve(asked));
    } else {
      EXPECT_EQ(resolve_error(asked),
                "E_PP_GROUPS_DIFFER: pipeline groups of the dense grid and of the expert grid differ under order '" +
                    asked.order + "'");
    }
    ++(same ? legal : illegal);
  }
  EXPECT_GT(legal, 100);
  EXPECT_GT(illegal, 100);
}

TEST(ParallelConfig, TensorGroupsAreComparedAsTheListsOfTheirRanks) {
  int same = 0, others = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    std::mt19937_64 random(seed);
    ParallelSizes asked = random_sizes(random);
    if (seed % 2 == 0) asked.etp = asked.tp;
    ResolvedSizes sizes;
    try {
      sizes = resolve(asked);
    } catch (const ConfigError&) {
      continue;
    }
    SCOPED_TRACE(str("seed ", seed, ": ", describe(asked)));
    const bool are_same = dense_grid(sizes).groups("tp").all() == expert_grid(sizes).groups("tp").all();
    EXPECT_EQ(has_same_tensor_groups(sizes), are_same);
    if (sizes.tp == sizes.etp && sizes.tp > 1) ++(are_same ? same : others);
  }
  EXPECT_GT(same, 20);
  EXPECT_GT(others, 20);
}

}  // namespace
}  // namespace megalith::grid
