#include "megalith/grid/rank_generator.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "megalith/base/str.h"

#include "tests/grid/grid_testing.h"

namespace megalith::grid {
namespace {

std::string join(const std::vector<Axis>& axes) {
  std::string text;
  for (const Axis axis : axes) text += str(text.empty() ? "" : "-", name_of(axis));
  return text;
}

/// Counts through the grid like an odometer whose fastest wheel is the first axis.
std::vector<PerAxis> count_through(const PerAxis& sizes, const std::vector<Axis>& order) {
  std::vector<PerAxis> all;
  PerAxis at;
  for (bool done = false; !done;) {
    all.push_back(at);
    done = true;
    for (const Axis axis : order) {
      if (++at[axis] < sizes[axis]) {
        done = false;
        break;
      }
      at[axis] = 0;
    }
  }
  return all;
}

/// Ranks whose coordinates outside `token` are equal, in the order in which they are met.
Groups brute_force(const std::vector<PerAxis>& coordinates, const std::vector<Axis>& token) {
  std::map<std::array<int, 5>, std::size_t> seen;
  Groups groups;
  for (std::size_t rank = 0; rank < coordinates.size(); ++rank) {
    PerAxis key = coordinates[rank];
    for (const Axis axis : token) key[axis] = 0;
    const auto [place, is_new] = seen.try_emplace({key.tp, key.cp, key.ep, key.dp, key.pp}, groups.size());
    if (is_new) groups.emplace_back();
    groups[place->second].push_back(static_cast<int>(rank));
  }
  return groups;
}

class AllOrders : public testing::TestWithParam<PerAxis> {};

TEST_P(AllOrders, EveryTokenEqualsBruteForce) {
  const PerAxis sizes = GetParam();
  std::vector<Axis> order(kAxes.begin(), kAxes.end());
  int orders = 0;
  do {
    const RankGenerator generator(sizes, join(order));
    const std::vector<PerAxis> coordinates = count_through(sizes, order);
    ASSERT_EQ(generator.world_size(), static_cast<int>(coordinates.size()));
    for (int rank = 0; rank < generator.world_size(); ++rank) {
      ASSERT_EQ(generator.coordinates(rank), coordinates[static_cast<std::size_t>(rank)])
          << join(order) << " rank " << rank;
      ASSERT_EQ(generator.rank(generator.coordinates(rank)), rank) << join(order);
    }
    for (unsigned mask = 1; mask < 32; ++mask) {
      std::vector<Axis> token;
      for (std::size_t i = kAxes.size(); i-- > 0;) {  // any order inside the token
        if ((mask >> i & 1u) != 0) token.push_back(kAxes[i]);
      }
      const MaskedGroups groups = generator.groups(join(token));
      const Groups want = brute_force(coordinates, token);
      ASSERT_EQ(as_vectors(groups.all()), want) << join(order) << " token " << join(token);
      for (int g = 0; g < groups.num_groups(); ++g) {
        for (int j = 0; j < groups.group_size(); ++j) {
          const int rank = want[static_cast<std::size_t>(g)][static_cast<std::size_t>(j)];
          ASSERT_EQ(groups.group_of(rank), g) << join(order) << " token " << join(token) << " rank " << rank;
          ASSERT_EQ(groups.index_of(rank), j) << join(order) << " token " << join(token) << " rank " << rank;
        }
      }
    }
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(orders, 120);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AllOrders,
                         testing::Values(PerAxis{.tp = 2, .cp = 3, .ep = 1, .dp = 2, .pp = 2},
                                         PerAxis{.tp = 2, .cp = 1, .ep = 2, .dp = 3, .pp = 2},
                                         PerAxis{.tp = 1, .cp = 1, .ep = 4, .dp = 1, .pp = 3},
                                         PerAxis{.tp = 1, .cp = 1, .ep = 1, .dp = 1, .pp = 1},
                                         PerAxis{.tp = 5, .cp = 1, .ep = 1, .dp = 3, .pp = 1}));

// Loops of the classic three-axis set-up: rank = tp + dp*t + pp*t*d.
TEST(RankGenerator, EqualsTheLoopsOfThreeAxes) {
  for (int t = 1; t <= 4; ++t) {
    for (int p = 1; p <= 4; ++p) {
      for (int d = 1; d <= 4; ++d) {
        const int n = t * p * d;
        Groups tp, pp, dp, mp;
        for (int i = 0; i < n / t; ++i) {
          tp.emplace_back();
          for (int rank = i * t; rank < (i + 1) * t; ++rank) tp.back().push_back(rank);
        }
        for (int i = 0; i < n / p; ++i) {
          pp.emplace_back();
          for (int rank = i; rank < n; rank += n / p) pp.back().push_back(rank);
        }
        for (int stage = 0; stage < p; ++stage) {
          for (int j = 0; j < t; ++j) {
            dp.emplace_back();
            for (int rank = stage * n / p + j; rank < (stage + 1) * n / p; rank += t) dp.back().push_back(rank);
          }
        }
        for (int k = 0; k < d; ++k) {
          mp.emplace_back();
          for (const std::vector<int>& group : dp) mp.back().push_back(group[static_cast<std::size_t>(k)]);
        }
        const RankGenerator generator({.tp = t, .cp = 1, .ep = 1, .dp = d, .pp = p}, "tp-dp-pp");
        EXPECT_EQ(as_vectors(generator.groups("tp").all()), tp) << "t " << t << " p " << p << " d " << d;
        EXPECT_EQ(as_vectors(generator.groups("pp").all()), pp) << "t " << t << " p " << p << " d " << d;
        EXPECT_EQ(as_vectors(generator.groups("dp").all()), dp) << "t " << t << " p " << p << " d " << d;
        EXPECT_EQ(as_vectors(generator.groups("tp-pp").all()), mp) << "t " << t << " p " << p << " d " << d;
      }
    }
  }
}

TEST(RankGenerator, IsABijectionOnRandomGrids) {
  std::mt19937_64 random(20260101);
  for (int round = 0; round < 200; ++round) {
    const ParallelSizes asked = random_sizes(random);
    const PerAxis sizes{.tp = asked.tp,
                        .cp = asked.cp,
                        .ep = 1,
                        .dp = asked.world_size / (asked.tp * asked.cp * asked.pp),
                        .pp = asked.pp};
    const RankGenerator generator(sizes, asked.order);
    std::vector<bool> hit(static_cast<std::size_t>(generator.world_size()));
    for (const PerAxis& coordinates : count_through(sizes, generator.order())) {
      const int rank = generator.rank(coordinates);
      ASSERT_FALSE(hit.at(static_cast<std::size_t>(rank))) << describe(asked) << ": rank " << rank << " twice";
      hit[static_cast<std::size_t>(rank)] = true;
      ASSERT_EQ(generator.coordinates(rank), coordinates) << describe(asked);
    }
  }
}

TEST(RankGenerator, OrderAndTokensIgnoreLetterCase) {
  const RankGenerator generator({.tp = 2, .cp = 1, .ep = 1, .dp = 3, .pp = 2}, "Dp-TP-pP");
  EXPECT_EQ(generator.order_text(), "dp-tp-pp-cp-ep");
  EXPECT_EQ(generator.strides(), (PerAxis{.tp = 3, .cp = 12, .ep = 12, .dp = 1, .pp = 6}));
  EXPECT_EQ(generator.groups("TP-dp").all(), generator.groups("dp-tp").all());
}

TEST(RankGenerator, Errors) {
  const PerAxis ones{.tp = 1, .cp = 1, .ep = 1, .dp = 1, .pp = 1};
  EXPECT_EQ(config_error([&] { RankGenerator(PerAxis{.tp = 2, .cp = 1, .ep = 1, .dp = 1}, "tp-pp"); }),
            "E_SIZE_NOT_POSITIVE: pp=0: every size must be at least 1");
  EXPECT_EQ(config_error([&] { RankGenerator(ones, "tp-"); }), "E_ORDER_UNKNOWN_AXIS: order 'tp-': unknown axis ''");
  EXPECT_EQ(config_error([&] { RankGenerator(ones, "tp-dp-TP-xx"); }),
            "E_ORDER_UNKNOWN_AXIS: order 'tp-dp-TP-xx': unknown axis 'xx'");  // before the duplicate
  EXPECT_EQ(config_error([&] { RankGenerator(ones, "tp-dp-TP"); }),
            "E_ORDER_DUPLICATE_AXIS: order 'tp-dp-TP': axis 'tp' appears twice");
  EXPECT_EQ(config_error([&] { RankGenerator(ones, "tp").groups("tp-"); }),
            "E_TOKEN_UNKNOWN: token 'tp-': unknown axis ''");
  EXPECT_EQ(config_error([&] { RankGenerator(ones, "tp").coordinates(1); }), "[grid] rank = 1: must be in 0..0");
  EXPECT_EQ(config_error([&] { RankGenerator(ones, "tp").rank({.dp = -1}); }),
            "[grid] dp coordinate = -1: must be in 0..0");
  EXPECT_EQ(config_error([&] { RankGenerator({.tp = 65536, .cp = 1, .ep = 1, .dp = 65536, .pp = 1}, "tp-dp"); }),
            "[grid] ranks = 65536 * 65536: a grid has at most 2147483647 ranks");
}

TEST(RankGenerator, FirstCopiesHoldTheSameShareOfTheModel) {
  for (const char* order : {"tp-cp-ep-dp-pp", "dp-pp-tp-cp-ep", "pp-cp-tp-ep-dp"}) {
    const RankGenerator grid({.tp = 2, .cp = 2, .ep = 1, .dp = 3, .pp = 2}, order);
    for (int rank = 0; rank < grid.world_size(); ++rank) {
      const int first = grid.in_first_copy(rank);
      const PerAxis got = grid.coordinates(first), own = grid.coordinates(rank);
      EXPECT_EQ(got, (PerAxis{.tp = own.tp, .ep = own.ep, .pp = own.pp})) << order << ", rank " << rank;
      EXPECT_LE(first, rank);
    }
    EXPECT_THROW(grid.in_first_copy(grid.world_size()), ConfigError);
    std::vector<int> asked;
    const std::vector<int> all = grid.per_rank([&](int rank) { return asked.emplace_back(rank); });
    for (int rank = 0; rank < grid.world_size(); ++rank)
      EXPECT_EQ(all[static_cast<std::size_t>(rank)], grid.in_first_copy(rank));
    EXPECT_EQ(asked.size(), 2 * 2) << "tp x pp";
  }
}

}  // namespace
}  // namespace megalith::grid
