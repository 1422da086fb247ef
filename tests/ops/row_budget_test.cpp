#include "megalith/ops/row_budget.h"

#include <random>
#include <set>

#include <gmock/gmock.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/echo_routing.h"
#include "megalith/ops/row_rounds.h"

#include "tests/ops/op_test.h"

// Ranks of experts with room for fewer rows than can come: which pairs have none, and rounds in which all have room.
namespace megalith::ops {
namespace {

using Choices = std::vector<std::int32_t>;

/// R ranks with n rows of K choices, of E experts, L on each rank.
struct BudgetSizes {
  Index ranks, rows, top_k, experts, local;
};

Tensor i32_tensor(Exec& ex, const Shape& shape, const Choices& values) {
  const Tensor tensor = ex.tensor(shape, DType::i32);
  std::ranges::copy(values, tensor.data<std::int32_t>());
  return tensor;
}

Choices numbers_of(const Tensor& tensor) {
  const auto values = tensor.span<std::int32_t>();
  return {values.begin(), values.end()};
}

Choices random_choices(const BudgetSizes& sizes, std::mt19937& random) {
  Choices choices;
  for (Index row = 0; row < sizes.ranks * sizes.rows; ++row) {
    std::set<std::int32_t> of_row;
    while (std::ssize(of_row) < sizes.top_k) {
      const auto at = static_cast<Index>(random() % 100);
      of_row.insert(static_cast<std::int32_t>(at < 60 ? at % 2 : at % sizes.experts));
    }
    for (const std::int32_t expert : of_row) choices.push_back(random() % 9 == 0 ? -1 : expert);
  }
  return choices;
}

/// By sorting the pairs of each rank of experts.
struct Limited {
  Choices choices;
  std::int64_t beyond = 0, most = 0;
};
Limited limited(const BudgetSizes& sizes, Choices choices, Index room, Index rank) {
  Limited want;
  for (Index home = 0; home < sizes.experts / sizes.local; ++home) {
    std::vector<std::pair<std::int32_t, std::size_t>> pairs;
    for (std::size_t pair = 0; pair < choices.size(); ++pair) {
      if (choices[pair] >= 0 && choices[pair] / sizes.local == home) pairs.emplace_back(choices[pair], pair);
    }
    std::ranges::sort(pairs);
    want.most = std::max(want.most, static_cast<std::int64_t>(pairs.size()));
    for (auto i = static_cast<std::size_t>(room); i < pairs.size(); ++i) {
      const std::size_t pair = pairs[i].second;
      choices[pair] = -1;
      if (static_cast<Index>(pair) / (sizes.rows * sizes.top_k) == rank) ++want.beyond;
    }
  }
  want.choices = std::move(choices);
  return want;
}

TEST(LimitRows, TakesAwayWhatComesAfterTheRoomOfARank) {
  std::mt19937 random(7);
  for (const BudgetSizes& sizes : {BudgetSizes{4, 6, 2, 8, 2}, BudgetSizes{2, 5, 3, 6, 3}, BudgetSizes{8, 3, 1, 8, 1},
                                   BudgetSizes{4, 4, 2, 4, 2}}) {
    const Index worst = sizes.ranks * sizes.rows * std::min(sizes.top_k, sizes.local);
    for (Index room = 0; room <= worst; ++room) {
      const Choices choices = random_choices(sizes, random);
      for (const Index rank : {Index{0}, sizes.ranks - 1}) {
        SCOPED_TRACE(str(sizes.ranks, " ranks, room ", room, ", rank ", rank));
        Exec ex;
        const Tensor experts = i32_tensor(ex, {sizes.ranks, sizes.rows, sizes.top_k}, choices);
        const Tensor overflow = ex.tensor({2}, DType::i64), dropped = ex.tensor({1}, DType::i64);
        auto* totals = overflow.data<std::int64_t>();
        totals[0] = 10, totals[1] = 3, dropped.data<std::int64_t>()[0] = 20;
        limit_rows(ex, {.experts = experts,
                        .overflow = overflow,
                        .dropped = dropped,
                        .num_experts = sizes.experts,
                        .local_experts = sizes.local,
                        .room = room,
                        .rank = rank});
        const Limited want = limited(sizes, choices, room, rank);
        EXPECT_EQ(numbers_of(experts), want.choices);
        EXPECT_EQ(totals[0], 10 + want.beyond);
        EXPECT_EQ(totals[1], std::max<std::int64_t>(3, want.most));
        EXPECT_EQ(dropped.data<std::int64_t>()[0], 20 + want.beyond);
      }
    }
  }
}

TEST(LimitRows, CountsNothingForReplicas) {
  Exec ex;
  const Tensor experts = i32_tensor(ex, {2, 2, 1}, {0, 0, 0, 1}), overflow = ex.tensor({2}, DType::i64);
  overflow.data<std::int64_t>()[0] = overflow.data<std::int64_t>()[1] = 0;
  limit_rows(ex,
             {.experts = experts, .overflow = overflow, .num_experts = 2, .local_experts = 1, .room = 1, .rank = -1});
  EXPECT_EQ(numbers_of(experts), (Choices{0, -1, -1, 1}));
  EXPECT_EQ(overflow.data<std::int64_t>()[0], 0);
  EXPECT_EQ(overflow.data<std::int64_t>()[1], 3);
}

TEST(LimitRows, RefusesExpertsThatDoNotExist) {
  for (const std::int32_t expert : {-2, 4}) {
    Exec ex;
    const Tensor experts = i32_tensor(ex, {2, 1, 1}, {1, expert});
    const LimitRows args{.experts = experts, .num_experts = 4, .local_experts = 2, .room = 1};
    EXPECT_THAT([&] { limit_rows(ex, args); }, ::testing::ThrowsMessage<InputError>(
                                                   str("[limit_rows] experts[1] = ", expert, ": must be in -1 .. 3")));
  }
}

TEST(RankCapacity, TheLeastFactorIsTheFirstWithRoom) {
  for (const Index pairs : {1, 3, 64, 1000, 1024, 4096 * 8}) {
    for (const Index needed : {Index{1}, pairs - 1, pairs, pairs + 1, 2 * pairs + 1, 7 * pairs / 3}) {
      if (needed < 1) continue;
      const Index factor = factor_for_rows(needed, pairs);
      EXPECT_GE(rows_of_factor(pairs, factor), needed) << pairs << ", " << needed;
      EXPECT_LT(rows_of_factor(pairs, factor - 1), needed) << pairs << ", " << needed;
    }
  }
}

TEST(RowRounds, EveryExpertIsInOneRoundAndTheRowsOfARoundFit) {
  std::mt19937 random(3);
  for (const BudgetSizes& sizes :
       {BudgetSizes{4, 6, 2, 8, 2}, BudgetSizes{2, 5, 3, 6, 3}, BudgetSizes{4, 8, 4, 16, 8}}) {
    for (Index room = sizes.ranks * sizes.rows; room <= sizes.ranks * sizes.rows * 3; room += 5) {
      Exec ex;
      const Choices choices = random_choices(sizes, random);
      const Shape shape{sizes.ranks, sizes.rows, sizes.top_k};
      const Tensor experts = i32_tensor(ex, shape, choices), of_round = ex.tensor(shape, DType::i32);
      std::vector<std::int32_t> round_of(static_cast<std::size_t>(sizes.experts), -9);
      const Tensor counts = ex.tensor({sizes.ranks, sizes.experts}, DType::i32);
      count_pairs(ex, {.experts = experts, .counts = counts});
      const std::int32_t rounds = assign_rounds(
          {.counts = counts.span<std::int32_t>(), .round_of = round_of, .local_experts = sizes.local, .room = room});
      Choices sum(choices.size(), -1);
      for (std::int32_t round = 0; round < rounds; ++round) {
        std::ranges::fill(of_round.span<std::int32_t>(), -7);
        choices_of_round(ex, {.experts = experts, .of_round = of_round, .round_of = round_of, .round = round});
        std::vector<Index> of_rank(static_cast<std::size_t>(sizes.experts / sizes.local));
        for (std::size_t pair = 0; pair < choices.size(); ++pair) {
          const std::int32_t expert = numbers_of(of_round)[pair];
          if (expert < 0) continue;
          EXPECT_EQ(sum[pair], -1) << "a pair is in one round";
          sum[pair] = expert;
          EXPECT_LE(++of_rank[static_cast<std::size_t>(expert / sizes.local)], room);
        }
      }
      EXPECT_EQ(sum, choices);
    }
  }
}

TEST(RowRounds, ListsOfResultsNameEachPlaceOnce) {
  Exec ex;
  const Tensor experts = i32_tensor(ex, {3, 2}, {4, -1, 0, 2, -1, -1}), row_of = ex.tensor({3, 4}, DType::i32);
  std::ranges::fill(row_of.span<std::int32_t>(), -7);
  number_pairs(ex, experts, row_of);
  EXPECT_EQ(numbers_of(row_of), (Choices{0, 1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1}));
  const Tensor places = i32_tensor(ex, {4, 2}, {1, 5, -1, -1, 0, 3, 2, 0});
  const PullTables pulls{.counts = i32_tensor(ex, {2}, {-7, -7}),
                         .sources = i32_tensor(ex, {4, 2}, Choices(8, -7)),
                         .begin = i32_tensor(ex, {5}, Choices(5, -7)),
                         .wants = i32_tensor(ex, {4}, Choices(4, -7))};
  pull_places(ex, places, pulls);
  EXPECT_EQ(numbers_of(pulls.counts), (Choices{3, 3}));
  EXPECT_EQ(numbers_of(pulls.sources), (Choices{1, 5, 0, 3, 2, 0, -7, -7}));
  EXPECT_EQ(numbers_of(pulls.begin), (Choices{0, 1, 2, 3, -7}));
  EXPECT_EQ(numbers_of(pulls.wants), (Choices{0, 2, 3, -7}));
}

TEST(RowRounds, RefusesAnExpertThatFitsNoRound) {
  const std::vector<std::int32_t> counts = {2, 1, 0, 2};  // of two ranks
  std::vector<std::int32_t> round_of(2);
  const AssignRounds args{.counts = counts, .round_of = round_of, .local_experts = 1, .room = 2};
  EXPECT_THAT([&] { assign_rounds(args); },
              ::testing::ThrowsMessage<InputError>("[assign_rounds] expert 1 has 3 rows: must be at most 2"));
}

}  // namespace
}  // namespace megalith::ops
