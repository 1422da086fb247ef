#include "megalith/ops/echo_routing.h"

#include <algorithm>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/ops/rows.h"

#include "tests/ops/echo_plans.h"

// Rewriting of choices, and the lists of rows that move, against loops that follow the definitions.
namespace megalith::ops {
namespace {

Tensor i32_tensor(Exec& ex, const Shape& shape, const Ints& values) {
  const Tensor tensor = ex.tensor(shape, DType::i32);
  std::ranges::copy(values, tensor.data<std::int32_t>());
  return tensor;
}

Ints all_of(const Tensor& tensor) {
  const std::span<std::int32_t> all = tensor.span<std::int32_t>();
  return {all.begin(), all.end()};
}

/// The choices of R ranks, n rows each with K experts that differ; some rows chose none.
struct RankChoices {
  Index ranks = 1, rows = 1, top_k = 1, experts = 1;
  Ints all = {};
  std::size_t pair(Index rank, Index row, Index k) const { return at((rank * rows + row) * top_k + k); }
};

RankChoices random_rank_choices(std::mt19937& random) {
  const auto below = [&](Index end) { return static_cast<Index>(random() % static_cast<unsigned>(end)); };
  RankChoices of{.ranks = 1 + below(5), .rows = below(20)};
  of.experts = of.ranks * (1 + below(4));
  of.top_k = 1 + below(std::min<Index>(3, of.experts));
  for (Index row = 0; row < of.ranks * of.rows; ++row) {
    Ints experts;
    while (static_cast<Index>(experts.size()) < of.top_k) {
      const auto expert = static_cast<std::int32_t>(below(3) == 0 ? below(of.experts) : below(1 + of.experts / 3));
      if (std::ranges::find(experts, expert) == experts.end()) experts.push_back(expert);
      if (below(20) == 0 && static_cast<Index>(experts.size()) < of.top_k) experts.push_back(-1);
    }
    of.all.insert(of.all.end(), experts.begin(), experts.end());
  }
  return of;
}

Ints rank_counts(const RankChoices& of) {
  Ints counts(at(of.ranks * of.experts));
  for (Index pair = 0; pair < static_cast<Index>(of.all.size()); ++pair) {
    const std::int32_t expert = of.all[at(pair)];
    if (expert >= 0) ++counts[at(pair / (of.rows * of.top_k) * of.experts + expert)];
  }
  return counts;
}

Ints rewritten(const RankChoices& of, const PlannedEcho& plan) {
  Exec ex;
  ex.poison_new_tensors();
  const Shape shape{of.ranks, of.rows, of.top_k};
  const Index all_slots = static_cast<Index>(plan.src.size());
  const Tensor columns = ex.tensor(shape, DType::i32);
  rewrite_choices(ex, {.experts = i32_tensor(ex, shape, of.all),
                       .src = i32_tensor(ex, {all_slots}, plan.src),
                       .take = i32_tensor(ex, {of.ranks, all_slots}, plan.take),
                       .columns = columns,
                       .num_experts = of.experts});
  return all_of(columns);
}

/// The definition: of the pairs of an expert on a rank, in order, take[slot] go to each of its slots in order.
Ints right_columns(const RankChoices& of, const PlannedEcho& plan) {
  const Index local = of.experts / of.ranks, slots = static_cast<Index>(plan.src.size()) / of.ranks;
  Ints columns(of.all.size(), -1);
  for (Index rank = 0; rank < of.ranks; ++rank) {
    for (Index expert = 0; expert < of.experts; ++expert) {
      Ints to;
      for (Index slot = 0; slot < of.ranks * slots; ++slot) {
        if (plan.src[at(slot)] != expert) continue;
        to.insert(to.end(), at(plan.take[at(rank * of.ranks * slots + slot)]),
                  static_cast<std::int32_t>(slot / slots * (local + slots) + local + slot % slots));
      }
      std::size_t ordinal = 0;
      for (Index row = 0; row < of.rows; ++row) {
        for (Index k = 0; k < of.top_k; ++k) {
          if (of.all[of.pair(rank, row, k)] != expert) continue;
          const auto home = static_cast<std::int32_t>(expert / local * (local + slots) + expert % local);
          columns[of.pair(rank, row, k)] = ordinal < to.size() ? to[ordinal] : home;
          ++ordinal;
        }
      }
    }
  }
  return columns;
}

TEST(EchoRouting, RewritesPairsInTheOrderOfTokensAndCountsThem) {
  std::mt19937 random(5);
  int moved = 0;
  for (int i = 0; i < 300; ++i) {
    const RankChoices of = random_rank_choices(random);
    const EchoCase balance{.ranks = of.ranks,
                           .experts = of.experts,
                           .slots = static_cast<Index>(random() % 4),
                           .counts = rank_counts(of),
                           .balance = i % 2 == 0 ? EchoBalance::greedy : EchoBalance::exact};
    Exec ex;
    ex.poison_new_tensors();
    const Tensor counts = ex.tensor({of.ranks, of.experts}, DType::i32);
    count_pairs(ex, {.experts = i32_tensor(ex, {of.ranks, of.rows, of.top_k}, of.all), .counts = counts});
    ASSERT_EQ(all_of(counts), balance.counts);
    const PlannedEcho plan = planned_echo(balance);
    const Ints columns = rewritten(of, plan);
    ASSERT_EQ(columns, right_columns(of, plan)) << "case " << i;
    Ints rows(plan.rows.size());
    for (std::size_t pair = 0; pair < columns.size(); ++pair) {
      const auto rank = static_cast<Index>(pair) / (of.rows * of.top_k);
      if (columns[pair] >= 0) ++rows[at(rank * (of.experts + balance.all_slots()) + columns[pair])];
    }
    ASSERT_EQ(rows, plan.rows) << "case " << i;
    moved += static_cast<int>(std::ranges::count_if(plan.src, [](std::int32_t expert) { return expert >= 0; }));
  }
  EXPECT_GT(moved, 200);
}

/// Weights and gradients as lists move them between ranks: the number of an expert, or of a slot, in place of a row.
void expect_lists(const PlannedEcho& plan, Index ranks, Index experts) {
  const Index slots = static_cast<Index>(plan.src.size()) / ranks, local = experts / ranks;
  std::vector<CloneLists> of;
  Exec ex;
  ex.poison_new_tensors();
  const Tensor src = i32_tensor(ex, {ranks * slots}, plan.src);
  std::map<Index, Ints> messages;  // from * ranks + to: experts
  for (Index rank = 0; rank < ranks; ++rank) {
    of.push_back(make_clone_lists(ex, ranks, experts, slots));
    list_clones(ex, {.src = src, .lists = of.back(), .num_experts = experts, .ranks = ranks, .rank = rank});
  }
  for (Index rank = 0; rank < ranks; ++rank) {
    const CloneLists& lists = of[at(rank)];
    const Ints sources = all_of(lists.sources), begin = all_of(lists.begin), wants = all_of(lists.wants);
    Ints here(at(slots), -1), by_image = here, by_message = here;
    const Ints counts = all_of(lists.counts);
    EXPECT_EQ(counts[0], counts[1]);
    for (Index i = 0; i < counts[0]; ++i) {
      EXPECT_EQ(begin[at(i)], i);
      here[at(wants[at(i)])] = static_cast<std::int32_t>(sources[at(2 * i)] * local + sources[at(2 * i + 1)]);
    }
    EXPECT_EQ(begin[at(counts[0])], counts[0]);
    Ints arriving;
    for (Index home = 0; home < ranks; ++home) {
      const Ints image = all_of(of[at(home)].image);
      for (Index slot = 0; slot < ranks * slots; ++slot) {
        if (image[at(slot)] < 0) {
          EXPECT_EQ(image[at(slot)], kZeroRow);
        } else if (slot / slots == rank) {
          by_image[at(slot % slots)] = static_cast<std::int32_t>(home * local + image[at(slot)]);
        }
      }
      // What `home` sends, of which this rank gets the part for its slots.
      Index sent = 0;
      for (Index slot = 0; slot < ranks * slots; ++slot) {
        if (plan.src[at(slot)] < 0 || plan.src[at(slot)] / local != home) continue;
        const std::int32_t row = all_of(of[at(home)].sent)[at(sent++)];
        if (slot / slots == rank) arriving.push_back(static_cast<std::int32_t>(home * local + row));
      }
      if (sent < ranks * slots) {
        EXPECT_EQ(all_of(of[at(home)].sent)[at(sent)], kUnusedRow);
      }
    }
    const Ints received = all_of(lists.received);
    for (Index j = 0; j < slots; ++j) {
      if (received[at(j)] >= 0) by_message[at(j)] = arriving[at(received[at(j)])];
    }
    const Ints right(plan.src.begin() + rank * slots, plan.src.begin() + (rank + 1) * slots);
    EXPECT_EQ(here, right);
    EXPECT_EQ(by_image, right);
    EXPECT_EQ(by_message, right);
  }
  for (Index home = 0; home < ranks; ++home) {
    const CloneLists& lists = of[at(home)];
    Ints arriving;  // slots whose gradients come home, in the order of messages
    for (Index rank = 0; rank < ranks; ++rank) {
      for (const std::int32_t j : all_of(of[at(rank)].returned)) {
        if (j >= 0 && plan.src[at(rank * slots + j)] / local == home)
          arriving.push_back(static_cast<std::int32_t>(rank * slots + j));
      }
    }
    const Ints begin = all_of(lists.sum_begin), places = all_of(lists.places), all = all_of(lists.slots),
               arrived = all_of(lists.arrived);
    for (Index row = 0; row < local; ++row) {
      Ints right, by_place, by_message;
      for (Index slot = 0; slot < ranks * slots; ++slot) {
        if (plan.src[at(slot)] == home * local + row) right.push_back(static_cast<std::int32_t>(slot));
      }
      for (Index i = begin[at(row)]; i < begin[at(row + 1)]; ++i) {
        by_place.push_back(static_cast<std::int32_t>(places[at(2 * i)] * slots + places[at(2 * i + 1)]));
        by_message.push_back(arriving[at(arrived[at(i)])]);
      }
      EXPECT_EQ(by_place, right);
      EXPECT_EQ(by_message, right);
      EXPECT_EQ(Ints(all.begin() + begin[at(row)], all.begin() + begin[at(row + 1)]), right);
    }
  }
}

TEST(EchoRouting, ListsMoveWeightsToSlotsAndGradientsHomeInTheOrderOfSlots) {
  std::mt19937 random(6);
  for (int i = 0; i < 200; ++i) {
    const RankChoices of = random_rank_choices(random);
    const PlannedEcho plan = planned_echo({.ranks = of.ranks,
                                           .experts = of.experts,
                                           .slots = static_cast<Index>(random() % 4),
                                           .counts = rank_counts(of)});
    SCOPED_TRACE(i);
    expect_lists(plan, of.ranks, of.experts);
  }
}

TEST(EchoRouting, AddsRowsOneAfterTheOther) {
  Exec ex;
  ex.poison_new_tensors();
  const Tensor rows = ex.tensor({3, 2}, DType::f32), grads = ex.tensor({2, 2}, DType::f32);
  // 1 + 2^-24 + 2^-24 is 1 if the small ones are added one after the other, and more if they are added first.
  const float small = 0x1p-24f, nan = std::numeric_limits<float>::quiet_NaN();
  std::ranges::copy(std::vector<float>{small, 5, nan, nan, small, 7}, rows.data<float>());
  std::ranges::copy(std::vector<float>{2, 3, 1, 1}, grads.data<float>());
  add_rows(ex, {.rows = rows,
                .begin = i32_tensor(ex, {3}, {0, 0, 2}),
                .order = i32_tensor(ex, {4}, {2, 0, -2, -2}),
                .grads = grads});
  const std::span<float> got = grads.span<float>();
  EXPECT_EQ(std::vector<float>(got.begin(), got.end()), (std::vector<float>{2, 3, 1, 13}));
}

TEST(EchoRouting, RefusesWhatDoesNotFit) {
  Exec ex;
  const auto refused = [&](auto call, const char* text) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown: " << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
    }
  };
  const Tensor choices = i32_tensor(ex, {2, 1, 2}, {0, 4, 1, 2}), counts = ex.tensor({2, 4}, DType::i32);
  refused([&] { count_pairs(ex, {.experts = choices, .counts = counts}); },
          "[count_pairs] experts[0], pair 1 = 4: must be in -1 .. 3");
  const Tensor src = ex.tensor({3}, DType::i32), take = ex.tensor({2, 3}, DType::i32);
  const Tensor columns = ex.tensor({2, 1, 2}, DType::i32);
  refused(
      [&] {
        rewrite_choices(ex, {.experts = choices, .src = src, .take = take, .columns = columns, .num_experts = 4});
      },
      "slots, ranks = 3, 2: must be a multiple of the ranks");
  const CloneLists lists = make_clone_lists(ex, 2, 4, 2);
  const Tensor of_two = ex.tensor({4}, DType::i32);
  refused([&] { list_clones(ex, {.src = of_two, .lists = lists, .num_experts = 4, .ranks = 2, .rank = 2}); },
          "[list_clones] rank, ranks, num_experts = 2, 2, 4: must be one of the ranks");
}

}  // namespace
}  // namespace megalith::ops
