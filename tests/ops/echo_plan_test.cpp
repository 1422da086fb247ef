// Invariants of ECHO's planner over random counts, and against a second planner that forms every matrix.
#include "megalith/ops/echo_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "tests/ops/echo_dense_plan.h"
#include "tests/ops/op_test.h"
#include "tests/support/sanitizers.h"

namespace megalith::ops {
namespace {

constexpr int kRandomCounts = support::kSanitizer ? 4000 : 100000;

Index sum_of(const Ints& values) { return std::accumulate(values.begin(), values.end(), Index{0}); }

/// I7, I8, I10, and the order of slots. Fills up `home` [R, E] and `after` [R]: the pairs that stay home, and the
/// loads.
void check_slots(const EchoCase& of, const PlannedEcho& plan, Ints& home, Ints& after) {
  const Index all = of.all_slots();
  std::set<std::pair<Index, std::int32_t>> clones;
  for (Index k = 0; k < all; ++k) {
    const std::int32_t src = plan.src[at(k)], cap = plan.cap[at(k)];
    const Index rank = k / of.slots;
    Index taken = 0, room = cap;
    for (Index r = 0; r < of.ranks; ++r) {
      taken += plan.take[at(r * all + k)];
      room -= plan.breadth[at(r * all + k)];
      ASSERT_LE(plan.breadth[at(r * all + k)], plan.take[at(r * all + k)]);
      if (src >= 0) home[at(r * of.experts + src)] -= plan.take[at(r * all + k)];
    }
    ASSERT_EQ(taken, cap) << "I8, slot " << k;
    ASSERT_EQ(room, plan.room[at(k)]);
    ASSERT_LE(room, of.ranks - 1) << "I10, slot " << k;
    if (src < 0) {
      ASSERT_EQ(src, -1);
      ASSERT_EQ(cap, 0);
      continue;
    }
    ASSERT_GE(cap, std::max<Index>(1, of.min_pairs)) << "slot " << k;
    ASSERT_LE(cap, plan.cap[at(k % of.slots > 0 ? k - 1 : k)]) << "EC-11, slot " << k;
    ASSERT_NE(src / of.local(), rank) << "I7: a clone at home, slot " << k;
    ASSERT_TRUE(clones.insert({rank, src}).second) << "I7: two clones on one rank, slot " << k;
    after[at(src / of.local())] -= cap;
    after[at(rank)] += cap;
  }
}

/// `moves` make up `spill` (of greedy plans: at most that), and slots hold the largest of a rank.
void check_moves(const EchoCase& of, const PlannedEcho& plan) {
  Ints of_expert(at(of.experts), 0), of_rank(at(of.ranks), 0), without_slot(at(of.ranks), 0);
  for (std::size_t i = 0; i < plan.moves.size() && plan.moves[i] >= 0; i += 3) {
    const std::int32_t expert = plan.moves[i], rank = plan.moves[i + 1], pairs = plan.moves[i + 2];
    ASSERT_GT(pairs, 0);
    of_expert[at(expert)] += pairs;
    of_rank[at(rank)] += pairs;
    const auto slots = plan.src.begin() + rank * of.slots, end = slots + of.slots;
    const auto slot = std::find(slots, end, expert);
    if (slot == end)
      without_slot[at(rank)] = std::max(without_slot[at(rank)], pairs);
    else
      ASSERT_EQ(plan.cap[at(slot - plan.src.begin())], pairs);
  }
  for (Index e = 0; e < of.experts; ++e) ASSERT_LE(of_expert[at(e)], plan.spill[at(e)]) << "I5, expert " << e;
  for (Index q = 0; q < of.ranks; ++q) ASSERT_LE(of_rank[at(q)], plan.spare[at(q)]) << "I5, rank " << q;
  for (Index k = 0; k < of.all_slots(); ++k) {
    const std::int32_t others = without_slot[at(k / of.slots)];
    ASSERT_TRUE(others < of.min_pairs || others <= plan.cap[at(k)]) << "EC-11, slot " << k;
  }
}

/// What every plan keeps, whoever balances. No load is above its former one and `even`.
void check_any_plan(const EchoCase& of, const PlannedEcho& plan, Index even) {
  Ints home = of.counts, after = plan.load;
  ASSERT_NO_FATAL_FAILURE(check_slots(of, plan, home, after));
  ASSERT_NO_FATAL_FAILURE(check_moves(of, plan));
  const Index total = sum_of(plan.load), local = of.local(), columns = local + of.slots;
  ASSERT_EQ(plan.avg, total / of.ranks);
  ASSERT_EQ(plan.load_after, after);
  ASSERT_EQ(sum_of(plan.load_after), total) << "I11";
  for (Index e = 0; e < of.experts; ++e) {
    Index left = plan.expert_total[at(e)];
    for (Index r = 0; r < of.ranks; ++r) left -= home[at(r * of.experts + e)];
    ASSERT_LE(left, plan.spill[at(e)]) << "expert " << e;
  }
  for (Index q = 0; q < of.ranks; ++q) {
    ASSERT_LE(plan.load_after[at(q)], std::max<Index>(plan.load[at(q)], even)) << "I11, rank " << q;
    Index computed = 0;
    for (Index r = 0; r < of.ranks; ++r) {
      for (Index i = 0; i < columns; ++i) {
        const std::int32_t row = plan.rows[at((r * of.ranks + q) * columns + i)];
        ASSERT_GE(row, 0) << "I9, source " << r << ", rank " << q << ", column " << i;
        ASSERT_EQ(row, i < local ? home[at(r * of.experts + q * local + i)]
                                 : plan.take[at((r * of.ranks + q) * of.slots + i - local)]);
        computed += row;
      }
    }
    ASSERT_EQ(computed, plan.load_after[at(q)]) << "rank " << q;
  }
}

/// I1 to I6 and I12: of greedy plans.
void check_greedy(const EchoCase& of, const PlannedEcho& plan) {
  const Index ranks = of.ranks, local = of.local();
  const Index total = sum_of(plan.load);
  Index spill = 0, spare = 0, spilling = 0, lacking = 0, wanted = 0;
  for (Index q = 0; q < ranks; ++q) {
    const auto own = plan.spill.begin() + q * local, counts = plan.expert_total.begin() + q * local;
    const Index of_rank = std::accumulate(own, own + local, Index{0});
    ASSERT_EQ(of_rank, std::max(0, plan.load[at(q)] - plan.avg)) << "I1, rank " << q;
    ASSERT_EQ(plan.spare[at(q)], std::max(0, plan.avg - plan.load[at(q)])) << "rank " << q;
    ASSERT_TRUE(of_rank == 0 || plan.spare[at(q)] == 0) << "I3, rank " << q;
    for (Index i = 0; i < local; ++i) {
      spilling += own[i] > 0 ? 1 : 0;
      if (own[i] == 0 || own[i] == counts[i]) continue;
      for (Index other = 0; other < local; ++other) {
        if (other == i) continue;
        const bool is_larger = counts[other] > counts[i] || (counts[other] == counts[i] && other > i);
        ASSERT_EQ(own[other], is_larger ? counts[other] : 0) << "I4, rank " << q << ", expert " << other;
      }
    }
    spill += of_rank;
    spare += plan.spare[at(q)];
    lacking += plan.spare[at(q)] > 0 ? 1 : 0;
    wanted += plan.wanted[at(q)];
  }
  ASSERT_EQ(spill - spare, total % ranks) << "I2";
  ASSERT_EQ(sum_of(plan.cap) + plan.plan_dropped, spare) << "I5";
  ASSERT_LE(wanted, std::max<Index>(0, spilling + lacking - 1)) << "I6";
  if (plan.plan_dropped > 0) return;
  Index excess = 0;
  for (const std::int32_t after : plan.load_after) {
    ASSERT_GE(after, plan.avg) << "I12";
    excess += after - plan.avg;
  }
  ASSERT_EQ(excess, total % ranks) << "I12";
}

TEST(EchoPlan, GreedyPlansKeepAllInvariants) {
  Index cloned = 0, dropped = 0;
  for (int number = 0; number < kRandomCounts; ++number) {
    SCOPED_TRACE(number);
    const EchoCase of = random_echo_case(number);
    const PlannedEcho plan = planned_echo(of);
    ASSERT_NO_FATAL_FAILURE(check_any_plan(of, plan, plan.avg));
    ASSERT_NO_FATAL_FAILURE(check_greedy(of, plan));
    cloned += std::ranges::count_if(plan.src, [](std::int32_t src) { return src >= 0; });
    dropped += plan.plan_dropped > 0 ? 1 : 0;
  }
  EXPECT_GT(cloned, kRandomCounts) << "random counts must need clones";
  EXPECT_GT(dropped, kRandomCounts / 10) << "and too many of them";
}

/// With slots for all: what the balance promises.
void check_exact(const EchoCase& of, const PlannedEcho& plan) {
  const Index ranks = of.ranks, total = sum_of(plan.load);
  for (Index q = 0; q < ranks; ++q) {
    ASSERT_LE(plan.wanted[at(q)], of.local()) << "rank " << q;
    if (of.slots < plan.wanted[at(q)]) return;
  }
  ASSERT_EQ(plan.plan_dropped, 0);
  std::vector<Index> by_load(at(ranks));
  std::iota(by_load.begin(), by_load.end(), 0);
  std::stable_sort(by_load.begin(), by_load.end(),
                   [&](Index a, Index b) { return plan.load[at(a)] > plan.load[at(b)]; });
  for (Index i = 0; i < ranks; ++i)
    ASSERT_EQ(plan.load_after[at(by_load[at(i)])], total / ranks + (i < total % ranks ? 1 : 0))
        << "rank " << by_load[at(i)];
  std::set<std::pair<Index, Index>> pairs, takers;
  for (Index k = 0; k < of.all_slots(); ++k) {
    if (plan.src[at(k)] < 0) continue;
    pairs.insert({plan.src[at(k)] / of.local(), k / of.slots});
    takers.insert({0, k / of.slots});
  }
  ASSERT_LE(static_cast<Index>(pairs.size()), ranks - 1);
  ASSERT_EQ(pairs.size(), takers.size()) << "a rank takes from one other";
}

TEST(EchoPlan, ExactPlansLeaveOnlyTheRemainderUneven) {
  Index complete = 0, short_of_slots = 0;
  for (int number = 0; number < kRandomCounts; ++number) {
    SCOPED_TRACE(number);
    EchoCase of = random_echo_case(number);
    of.balance = EchoBalance::exact;
    of.min_pairs = 0;
    const PlannedEcho plan = planned_echo(of);
    const Index total = sum_of(plan.load);
    ASSERT_NO_FATAL_FAILURE(check_any_plan(of, plan, ceil_div(total, of.ranks)));
    ASSERT_NO_FATAL_FAILURE(check_exact(of, plan));
    ASSERT_EQ(sum_of(plan.cap) + plan.plan_dropped, sum_of(plan.spare));
    const std::int32_t wanted = *std::ranges::max_element(plan.wanted);
    (wanted <= of.slots ? complete : short_of_slots) += 1;
    ASSERT_EQ(plan.plan_dropped > 0, wanted > of.slots);
  }
  EXPECT_GT(complete, kRandomCounts / 4);
  EXPECT_GT(short_of_slots, kRandomCounts / 20);
}

TEST(EchoPlan, EqualsAPlannerThatFormsEveryMatrix) {
  for (int number = 0; number < kRandomCounts / 10; ++number) {
    SCOPED_TRACE(number);
    EchoCase of = random_echo_case(number);
    if (number % 3 == 0) of.balance = EchoBalance::exact;
    if (of.balance == EchoBalance::exact) of.min_pairs = 0;
    const PlannedEcho plan = planned_echo(of);
    const DensePlan want = dense_plan(of);
    ASSERT_EQ(plan.src, want.src);
    ASSERT_EQ(plan.cap, want.cap);
    ASSERT_EQ(plan.take, want.take);
  }
}

TEST(EchoPlan, SmallPartsStayHome) {
  const EchoCase even{.ranks = 2, .experts = 4, .slots = 2, .counts = {50, 40, 40, 30, 50, 40, 40, 30}};
  EchoCase of = even;
  EXPECT_EQ(planned_echo(of).cap, (Ints{0, 0, 20, 0}));
  of.min_pairs = 20;
  EXPECT_EQ(planned_echo(of).cap, (Ints{0, 0, 20, 0}));
  of.min_pairs = 21;
  const PlannedEcho plan = planned_echo(of);
  EXPECT_EQ(plan.src, (Ints{-1, -1, -1, -1}));
  EXPECT_EQ(plan.plan_dropped, 20);
  EXPECT_EQ(plan.load_after, plan.load);
  EXPECT_EQ(plan.wanted, (Ints{0, 0}));
}

TEST(EchoPlan, ExactGivesTheRemainderToTheMostLoaded) {
  // Loads 9, 1, 1, 0 of N = 11: targets 3, 3, 3, 2. Rank 3 lacks 2, then ranks 1 and 2 lack 2 each.
  const EchoCase of{
      .ranks = 4,
      .experts = 8,
      .slots = 2,
      .counts = {4, 5, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
      .balance = EchoBalance::exact};
  const PlannedEcho plan = planned_echo(of);
  EXPECT_EQ(plan.load_after, (Ints{3, 3, 3, 2}));
  EXPECT_EQ(plan.src, (Ints{-1, -1, 1, -1, 0, -1, 1, -1}));
  EXPECT_EQ(plan.cap, (Ints{0, 0, 2, 0, 2, 0, 2, 0}));
  EXPECT_EQ(plan.spare, (Ints{0, 2, 2, 2}));
  EXPECT_EQ(plan.wanted, (Ints{0, 1, 1, 1}));
}

/// A rank that gave more than it had too much takes from another one, whose own experts it gets.
TEST(EchoPlan, ExactMakesGiversTakeToo) {
  const EchoCase of{.ranks = 3,
                    .experts = 6,
                    .slots = 2,
                    .counts = {12, 0, 5, 5, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
                    .balance = EchoBalance::exact};
  // Loads 12, 10, 2 of N = 24. Rank 2 takes 6 from rank 0, which then lacks 2 and takes them from rank 1.
  const PlannedEcho plan = planned_echo(of);
  EXPECT_EQ(plan.load_after, (Ints{8, 8, 8}));
  EXPECT_EQ(plan.src, (Ints{2, -1, -1, -1, 0, -1}));
  EXPECT_EQ(plan.cap, (Ints{2, 0, 0, 0, 6, 0}));
  EXPECT_EQ(plan.plan_dropped, 0);
}

/// What a rank can not take stays with the others; no load grows above what it was and the mean.
TEST(EchoPlan, ExactWithFewSlotsTakesWhatTheyHold) {
  EchoCase of{.ranks = 2, .experts = 8, .slots = 1, .counts = {50, 50, 50, 50, 0, 0, 0, 0, 50, 50, 50, 50, 0, 0, 0, 0}};
  of.balance = EchoBalance::exact;
  const PlannedEcho plan = planned_echo(of);
  EXPECT_EQ(plan.src, (Ints{-1, 0}));
  EXPECT_EQ(plan.load_after, (Ints{300, 100}));
  EXPECT_EQ(plan.plan_dropped, 100);
  EXPECT_EQ(plan.wanted, (Ints{0, 2}));
}

TEST(EchoPlan, WithoutSlotsNothingMoves) {
  const EchoCase of{.ranks = 2, .experts = 4, .slots = 0, .counts = {5, 4, 2, 1, 6, 4, 1, 1}};
  const PlannedEcho plan = planned_echo(of);
  EXPECT_EQ(plan.rows, of.counts);
  EXPECT_EQ(plan.load_after, (Ints{19, 5}));
  EXPECT_EQ(plan.plan_dropped, 7);
  EXPECT_EQ(plan.wanted, (Ints{0, 1}));
}

/// Counts up to the limit of their sum: products need 64 bits.
TEST(EchoPlan, LargeCountsAreExact) {
  const EchoCase of{.ranks = 2, .experts = 2, .slots = 1, .counts = {1000000007, 1, 1000000005, 2}};
  const PlannedEcho plan = planned_echo(of);
  EXPECT_EQ(plan.cap, (Ints{0, 1000000004}));
  EXPECT_EQ(plan.take, (Ints{0, 500000003, 0, 500000001}));
  EXPECT_EQ(plan.load_after, (Ints{1000000008, 1000000007}));
}

TEST(EchoPlan, NamesWhatDoesNotFit) {
  Exec ex;
  const auto refused = [&](Index ranks, Index experts, Index slots, const Ints& counts, EchoBalance balance = {},
                           Index min_pairs = 0) {
    return error_text([&] {
      const Tensor tensor = ex.tensor({ranks, experts}, DType::i32);
      std::fill_n(tensor.data<std::int32_t>(), tensor.numel(), 0);
      std::copy(counts.begin(), counts.end(), tensor.data<std::int32_t>());
      plan_echo(ex, {.counts = tensor,
                     .plan = make_echo_plan(ex, ranks, experts, slots),
                     .balance = balance,
                     .min_pairs = min_pairs});
    });
  };
  EXPECT_EQ(refused(2, 4, 1, {1, 1, 1, 1, 1, 1, -1, 1}), "[plan_echo] counts[1, 2] = -1: must be at least 0");
  EXPECT_EQ(refused(2, 2, 1, {2147483647, 0, 1, 0}), "[plan_echo] sum of counts = 2147483648: must be below 2^31");
  EXPECT_EQ(
      refused(2, 3, 1, {}),
      "[plan_echo.counts] ranks, experts = 2, 3: must be 1 to 256 ranks, and 1 to 1024 experts, a multiple of the "
      "ranks");
  EXPECT_EQ(refused(2, 4, 9, {}), "[plan_echo.plan.src] slots of a rank = 9: must be at most 8");
  EXPECT_EQ(refused(2, 4, 1, {}, EchoBalance::greedy, -1), "[plan_echo] min_pairs = -1: must be at least 0");
  EXPECT_EQ(refused(2, 4, 1, {}, EchoBalance::exact, 5), "[plan_echo] min_pairs = 5: must be 0 with balance = exact");
  EchoPlan plan = make_echo_plan(ex, 2, 4, 1);
  plan.take = ex.tensor({2, 3}, DType::i32);
  EXPECT_EQ(error_text([&] {
              plan_echo(ex, {.counts = ex.tensor({2, 4}, DType::i32), .plan = plan});
            }),
            "[plan_echo.plan.take] shape = [2, 3]: must be [2, 2]");
}

/// In other steps it keeps its bits.
TEST(EchoPlan, HashesInTheStepsThatCompare) {
  const EchoCase of = random_echo_case(3);
  const auto want = static_cast<std::int64_t>(planned_echo(of).hash);
  for (std::uint64_t step = 0; step < 7; ++step) {
    EXPECT_EQ(hash_in_step(of, Device::cpu, step, 3, 77), step % 3 == 0 ? want : 77) << "step " << step;
    EXPECT_EQ(hash_in_step(of, Device::cpu, step, 1, 77), want);
  }
}

/// Neither a hash nor the stages are needed: the other results are the same.
TEST(EchoPlan, HashAndStagesCanBeLeftAway) {
  Exec ex;
  ex.poison_new_tensors();
  const EchoCase of = random_echo_case(7);
  const Tensor counts = ex.tensor({of.ranks, of.experts}, DType::i32);
  std::copy(of.counts.begin(), of.counts.end(), counts.data<std::int32_t>());
  EchoPlan plan = make_echo_plan(ex, of.ranks, of.experts, of.slots);
  plan.hash = {};
  plan_echo(ex, {.counts = counts, .plan = plan, .min_pairs = of.min_pairs});
  const PlannedEcho want = planned_echo(of);
  const std::span<std::int32_t> take = plan.take.span<std::int32_t>(), rows = plan.rows.span<std::int32_t>();
  EXPECT_EQ(Ints(take.begin(), take.end()), want.take);
  EXPECT_EQ(Ints(rows.begin(), rows.end()), want.rows);
}

}  // namespace
}  // namespace megalith::ops
