#include "megalith/ops/row_exchange.h"

#include <array>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"

// Which rows ranks of experts read of each other, against a loop over all choices.
namespace megalith::ops {
namespace {

using Ids = std::vector<std::int32_t>;

/// An exchange of R ranks with n rows of K choices.
struct Exchange {
  Index ranks = 1, rows = 1, top_k = 1, num_experts = 1;
  ExpertRanks at;
  Index alignment = 1, rows_of_each = 0;
  Index first_groups = 0;
};

/// The plan of one rank. Outputs start as -7.
struct RankPlan {
  RankPlan(const Exchange& x, const Ids& experts, Index rank) {
    const auto put = [&](const Shape& shape) {
      const Tensor tensor = ex.tensor(shape, DType::i32);
      std::ranges::fill(tensor.span<std::int32_t>(), -7);
      return tensor;
    };
    plan.experts = put({x.ranks, x.rows, x.top_k});
    std::ranges::copy(experts, plan.experts.data<std::int32_t>());
    plan.groups = {.begin = put({x.at.local_experts}), .rows = put({x.at.local_experts}), .alignment = x.alignment};
    plan.ranks = x.at;
    plan.num_experts = x.num_experts;
    plan.rank = rank;
    plan.rows_of_each = x.rows_of_each;
    const Index pairs = pairs_to_receive(plan), results = capacity_of_groups(pairs, x.at.local_experts, x.alignment);
    plan.first_groups = x.first_groups;
    for (PullTables* list : {&plan.rows, &plan.rest})
      *list = {put({2}), put({x.ranks * x.rows, 2}), put({x.ranks * x.rows + 1}), put({results})};
    plan.pairs = {put({2}), put({pairs, 2}), put({pairs + 1}), put({results})};
    plan.places = put({x.rows * x.top_k * x.at.slices, 2});
    plan.row_begin = put({x.rows + 1});
    plan.pair_begin = put({x.rows * x.top_k + 1});
  }
  /// What each row of the result holds: (rank, row), (-1, -1) for zeros, (-7, -7) for rows that are left.
  std::vector<std::array<std::int32_t, 2>> sources(const PullTables& tables) const {
    std::vector<std::array<std::int32_t, 2>> of_row(static_cast<std::size_t>(tables.wants.dim(0)), {-7, -7});
    const auto *counts = tables.counts.data<std::int32_t>(), *begin = tables.begin.data<std::int32_t>(),
               *from = tables.sources.data<std::int32_t>(), *wants = tables.wants.data<std::int32_t>();
    std::set<std::array<std::int32_t, 2>> seen;
    EXPECT_EQ(begin[0], 0);
    const auto set = [&](Index want, const std::array<std::int32_t, 2>& source) {
      auto& row = of_row.at(static_cast<std::size_t>(wants[want]));
      EXPECT_EQ(row[0], -7) << "row " << wants[want] << " is wanted twice";
      row = source;
    };
    for (Index pull = 0; pull < counts[0]; ++pull) {
      const std::array source = {from[2 * pull], from[2 * pull + 1]};
      EXPECT_TRUE(seen.insert(source).second) << "a row crosses a link twice";
      EXPECT_LT(begin[pull], begin[pull + 1]) << "a row that nobody wants";
      for (Index want = begin[pull]; want < begin[pull + 1]; ++want) set(want, source);
    }
    for (Index want = begin[counts[0]]; want < counts[1]; ++want) set(want, {-1, -1});
    return of_row;
  }
  Exec ex;
  PlanExchange plan;
};

/// All rows of the first groups and all zeros are in `rows`, which gets those of the rest. No row is in both.
void expect_parts(const RankPlan& made, std::vector<std::array<std::int32_t, 2>>& rows) {
  const auto rest = made.sources(made.plan.rest);
  const std::int32_t begin = made.plan.groups.begin.data<std::int32_t>()[made.plan.first_groups];
  std::set<std::array<std::int32_t, 2>> first;
  for (const auto& source : rows) first.insert(source);
  for (std::size_t row = 0; row < rest.size(); ++row) {
    if (rest[row][0] == -7) continue;
    EXPECT_EQ(rows[row][0], -7) << row;
    EXPECT_GE(static_cast<std::int32_t>(row), begin) << "of the first groups";
    EXPECT_GE(rest[row][0], 0) << "zeros come first";
    EXPECT_FALSE(first.contains(rest[row])) << "a row crosses a link twice";
    rows[row] = rest[row];
  }
}

/// The rows of an expert by (source rank, row, choice), with zeros up to the next group.
void expect_exchange(const Exchange& x, const Ids& experts) {
  const Index own = x.rows * x.top_k, local = x.at.local_experts;
  std::vector<std::unique_ptr<RankPlan>> plans;
  for (Index rank = 0; rank < x.ranks; ++rank) {
    plans.push_back(std::make_unique<RankPlan>(x, experts, rank));
    plan_exchange(plans.back()->ex, plans.back()->plan);
  }
  std::vector<Ids> places(static_cast<std::size_t>(x.ranks), Ids(static_cast<std::size_t>(2 * own * x.at.slices), -1));
  for (Index rank = 0; rank < x.ranks; ++rank) {
    const RankPlan& made = *plans[static_cast<std::size_t>(rank)];
    const auto pairs = made.sources(made.plan.pairs);
    auto rows = made.sources(made.plan.rows);
    if (x.first_groups > 0) expect_parts(made, rows);
    std::vector<std::array<std::int32_t, 2>> right(pairs.size(), {-7, -7});
    Index end = 0, l = 0;
    for (Index expert = 0; expert < x.num_experts; ++expert) {
      Index slice = 0;
      while (slice < x.at.slices && x.at.destination(expert, slice) / local != rank) ++slice;
      if (slice == x.at.slices) continue;
      EXPECT_EQ(made.plan.groups.begin.data<std::int32_t>()[l], end);
      const Index group = end;
      for (Index source = 0; source < x.ranks; ++source) {
        const Index first = end;
        for (Index pair = 0; pair < own; ++pair) {
          if (experts[static_cast<std::size_t>(source * own + pair)] != expert) continue;
          if (x.rows_of_each > 0 && end - first == x.rows_of_each) continue;
          right.at(static_cast<std::size_t>(end)) = {static_cast<std::int32_t>(source),
                                                     static_cast<std::int32_t>(pair)};
          const Index place = 2 * (pair * x.at.slices + slice);
          places[static_cast<std::size_t>(source)][static_cast<std::size_t>(place)] = static_cast<std::int32_t>(rank);
          places[static_cast<std::size_t>(source)][static_cast<std::size_t>(place + 1)] =
              static_cast<std::int32_t>(end++);
        }
        for (; x.rows_of_each > 0 && end - first < x.rows_of_each; ++end)
          right.at(static_cast<std::size_t>(end)) = {-1, -1};
      }
      EXPECT_EQ(made.plan.groups.rows.data<std::int32_t>()[l++], end - group);
      for (; end % x.alignment != 0; ++end) right.at(static_cast<std::size_t>(end)) = {-1, -1};
    }
    EXPECT_EQ(pairs, right);
    for (auto& [source, row] : right) row = source < 0 ? row : row / static_cast<std::int32_t>(x.top_k);
    EXPECT_EQ(rows, right);
  }
  for (Index rank = 0; rank < x.ranks; ++rank) {
    const PlanExchange& plan = plans[static_cast<std::size_t>(rank)]->plan;
    const std::span<std::int32_t> got = plan.places.span<std::int32_t>();
    EXPECT_EQ(Ids(got.begin(), got.end()), places[static_cast<std::size_t>(rank)]);
    for (Index row = 0; row <= x.rows; ++row)
      EXPECT_EQ(plan.row_begin.data<std::int32_t>()[row], row * x.top_k * x.at.slices);
    for (Index pair = 0; pair <= own; ++pair) EXPECT_EQ(plan.pair_begin.data<std::int32_t>()[pair], pair * x.at.slices);
  }
}

/// Distinct choices of each row, some of them dropped.
Ids random_choices(const Exchange& x, unsigned seed) {
  std::mt19937 random(seed);
  Ids all, experts(static_cast<std::size_t>(x.num_experts));
  for (std::size_t e = 0; e < experts.size(); ++e) experts[e] = static_cast<std::int32_t>(e);
  for (Index row = 0; row < x.ranks * x.rows; ++row) {
    std::ranges::shuffle(experts, random);
    for (Index k = 0; k < x.top_k; ++k) all.push_back(random() % 6 == 0 ? -1 : experts[static_cast<std::size_t>(k)]);
  }
  return all;
}

TEST(RowExchange, EveryRankPlansTheSameExchange) {
  unsigned seed = 0;
  for (const Index alignment : {1, 4, 128}) {
    for (const Index rows_of_each : {0, 3, 20}) {
      for (Exchange x : {Exchange{2, 9, 2, 8, {.local_experts = 4}}, Exchange{4, 5, 3, 4, {.local_experts = 1}},
                         Exchange{8, 1, 1, 16, {.local_experts = 2}}, Exchange{2, 0, 2, 4, {.local_experts = 2}},
                         Exchange{4, 6, 2, 6, {.local_experts = 3, .slices = 2, .expert_stride = 2}},
                         Exchange{4, 6, 2, 6, {.local_experts = 3, .slices = 2, .slice_stride = 2}},
                         Exchange{4, 6, 2, 6, {.local_experts = 6, .slices = 4, .expert_stride = 4}}}) {
        x.alignment = alignment;
        x.rows_of_each = rows_of_each;
        SCOPED_TRACE(testing::Message() << x.ranks << " ranks, " << x.num_experts << " experts, " << x.at.slices
                                        << " slices, alignment " << alignment << ", each " << rows_of_each);
        expect_exchange(x, random_choices(x, ++seed));
        for (x.first_groups = 1; x.first_groups < x.at.local_experts; ++x.first_groups)
          expect_exchange(x, random_choices(x, ++seed));
      }
    }
  }
}

TEST(RowExchange, NoneChosenAndAllTheSame) {
  const Exchange x{3, 4, 2, 6, {.local_experts = 2}};
  expect_exchange(x, Ids(24, -1));
  Ids same;
  for (int row = 0; row < 12; ++row) same.insert(same.end(), {3, 2});
  expect_exchange(x, same);
}

TEST(RowExchange, NamesWhatDoesNotFit) {
  const Exchange x{2, 2, 1, 4, {.local_experts = 2}};
  const auto error = [&](const Ids& experts, auto&& spoil) {
    RankPlan made(x, experts, 0);
    spoil(made.plan);
    try {
      plan_exchange(made.ex, made.plan);
    } catch (const Error& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  const auto as_it_is = [](PlanExchange&) {};
  EXPECT_EQ(error({0, 1, 4, 2}, as_it_is), "[plan_exchange] experts[1, 0, 0] = 4: must be in -1 .. 3");
  EXPECT_EQ(error({0, -2, 3, 2}, as_it_is), "[plan_exchange] experts[0, 1, 0] = -2: must be in -1 .. 3");
  EXPECT_EQ(error({0, 1, 3, 2}, [](PlanExchange& plan) { plan.num_experts = 3; }),
            "[plan_exchange] experts, local_experts, slices = 3, 2, 1: must be at least 1, and the second divide the "
            "first");
  EXPECT_EQ(error({0, 1, 3, 2}, [](PlanExchange& plan) { plan.first_groups = 2; }),
            "[plan_exchange] first_groups = 2: must be from 0 to below 2, the local experts");
  EXPECT_EQ(error({0, 1, 3, 2}, [](PlanExchange& plan) { plan.pairs.wants = plan.row_begin; }),
            "[plan_exchange.pairs.wants] shape = [3]: must be [4]");
}

}  // namespace
}  // namespace megalith::ops
