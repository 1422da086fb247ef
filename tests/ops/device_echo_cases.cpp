#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "megalith/ops/echo_check.h"
#include "megalith/ops/echo_routing.h"
#include "megalith/runtime/step_state.h"

#include "tests/ops/device_cases.h"

// What follows from the choices of all ranks where experts have clones: all numbers as the CPU's.
namespace megalith::ops {
namespace {

/// R ranks with n rows of K choices of E experts, S slots each.
struct CloneSizes {
  Index ranks, rows, top_k, experts, slots;
};

/// Some experts get many rows, some pairs have none. `skew`: 0 even, 1 half of the first choices on one expert.
std::vector<std::int32_t> skewed_choices(const CloneSizes& of, int skew) {
  std::mt19937 random(static_cast<unsigned>(of.rows + skew));
  const auto below = [&](Index end) { return static_cast<Index>(random() % static_cast<unsigned>(end)); };
  std::vector<std::int32_t> all;
  for (Index row = 0; row < of.ranks * of.rows; ++row) {
    const Index stride = std::max<Index>(1, of.experts / of.top_k);
    Index first = below(of.experts);
    if (skew > 0) first = below(2) == 0 ? of.experts / 2 : below(of.experts) * below(of.experts) / of.experts;
    for (Index k = 0; k < of.top_k; ++k) {
      const auto expert = static_cast<std::int32_t>((first + k * stride) % of.experts);
      all.push_back(below(30) == 0 ? -1 : expert);
    }
  }
  return all;
}

/// Tensors of one side, with their names.
using Named = std::vector<std::pair<const char*, Tensor>>;

void add_lists(Named& to, const CloneLists& lists) {
  to.insert(to.end(), {{"counts of rows", lists.counts},
                       {"sources", lists.sources},
                       {"begin", lists.begin},
                       {"wants", lists.wants},
                       {"sum_begin", lists.sum_begin},
                       {"places", lists.places},
                       {"image", lists.image},
                       {"slots", lists.slots},
                       {"sent", lists.sent},
                       {"received", lists.received},
                       {"returned", lists.returned},
                       {"arrived", lists.arrived}});
}

void expect_same_bits(support::Twins& twins, const Named& want, const Named& got) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const Tensor &oracle = want[i].second, &tested = got[i].second;
    std::vector<std::byte> bytes(static_cast<std::size_t>(oracle.bytes()));
    twins.tested().copy(bytes.data(), tested.raw(), tested.bytes());
    twins.tested().synchronize();
    const auto* right = static_cast<const std::byte*>(oracle.raw());
    const auto differs = std::mismatch(bytes.begin(), bytes.end(), right).first - bytes.begin();
    EXPECT_EQ(differs, std::ssize(bytes)) << want[i].first << ": the byte that differs";
  }
}

class CloneTwins {
 public:
  CloneTwins(support::Twins& twins, const CloneSizes& of, int skew)
      : twins_(twins), of_(of), width_(skew == 0 ? 12 : 7) {
    choices_ = twins.bytes_of(skewed_choices(of, skew).data(), {of.ranks, of.rows, of.top_k}, DType::i32);
    const std::vector<double> some(static_cast<std::size_t>(kEchoTotals), 0.25);
    totals_ = twins.bytes_of(some.data(), {kEchoTotals}, DType::f64);
    rows_ = random_rows(of.ranks * of.slots);
    grads_ = random_rows(of.experts / of.ranks);
  }

  void expect_equal(EchoBalance balance, Index rank) {
    Named want, got;
    twins_.run([&](Exec& ex) { run(ex, balance, rank, &ex == &twins_.oracle() ? want : got); });
    expect_same_bits(twins_, want, got);
  }

 private:
  support::Twin random_rows(Index rows) {
    std::vector<float> values(static_cast<std::size_t>(rows * width_));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / static_cast<float>(i % 101 + 3);
    return twins_.bytes_of(values.data(), {rows, width_}, DType::f32);
  }
  void run(Exec& ex, EchoBalance balance, Index rank, Named& made) {
    const Tensor experts = choices_.on(ex), counts = ex.tensor({of_.ranks, of_.experts}, DType::i32);
    count_pairs(ex, {.experts = experts, .counts = counts});
    const EchoPlan plan = make_echo_plan(ex, of_.ranks, of_.experts, of_.slots);
    const EchoStages stages = make_echo_stages(ex, of_.ranks, of_.experts, of_.slots);
    plan_echo(ex, {.counts = counts, .plan = plan, .stages = stages, .balance = balance});
    const Tensor columns = ex.tensor(experts.shape(), DType::i32);
    rewrite_choices(
        ex, {.experts = experts, .src = plan.src, .take = plan.take, .columns = columns, .num_experts = of_.experts});
    const CloneLists lists = make_clone_lists(ex, of_.ranks, of_.experts, of_.slots);
    list_clones(ex, {.src = plan.src, .lists = lists, .num_experts = of_.experts, .ranks = of_.ranks, .rank = rank});
    add_echo_totals(ex, {.plan = plan, .stages = stages, .totals = totals_.on(ex)});
    add_rows(ex, {.rows = rows_.on(ex), .begin = lists.sum_begin, .order = lists.slots, .grads = grads_.on(ex)});
    made = {{"counts", counts},
            {"take", plan.take},
            {"columns", columns},
            {"totals", totals_.on(ex)},
            {"grads", grads_.on(ex)}};
    add_lists(made, lists);
  }

  support::Twins& twins_;
  CloneSizes of_;
  Index width_;
  support::Twin choices_, totals_, rows_, grads_;
};

TEST_P(DeviceOps, ClonesOfExperts) {
  // No rows, one rank, no slots, parts of many warps, the most ranks, experts and slots.
  for (const CloneSizes& of :
       {CloneSizes{4, 0, 2, 8, 2}, CloneSizes{1, 9, 2, 4, 2}, CloneSizes{2, 30, 3, 6, 0}, CloneSizes{2, 30, 3, 6, 3},
        CloneSizes{4, 300, 2, 16, 1}, CloneSizes{4, 8192, 8, 64, 3}, CloneSizes{8, 1000, 1, 8, 8},
        CloneSizes{64, 40, 4, 256, 2}, CloneSizes{256, 8, 2, 1024, 8}}) {
    for (const int skew : {0, 1}) {
      for (const EchoBalance balance : {EchoBalance::greedy, EchoBalance::exact}) {
        SCOPED_TRACE(::testing::Message()
                     << of.ranks << " ranks, " << of.rows << " rows, " << of.experts << " experts, " << of.slots
                     << " slots, skew " << skew << ", balance " << static_cast<int>(balance));
        CloneTwins twins(t(), of, skew);
        for (const Index rank : {Index{0}, of.ranks - 1}) twins.expect_equal(balance, rank);
        t().release();
      }
    }
  }
}

/// A comparison of plans of R ranks: the hash of rank `other` is another, -1: of none.
struct ComparedPlans {
  Index ranks, other;
  std::uint64_t step;
  Index every;
  std::int64_t found = 0;  ///< 1: an earlier difference is kept
};

Named compared_plans(support::Twins& twins, const ComparedPlans& of) {
  constexpr Index kRows = 33, kTopK = 3, kSlots = 2;
  const Index all_slots = of.ranks * kSlots;
  const auto filled = [&](const Shape& shape, DType dtype) {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int64_t>(i) % 5 + (Index{3} << 32);
    return twins.bytes_of(numbers.data(), shape, dtype);
  };
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(of.ranks), 0x1234567890);
  if (of.other >= 0) hashes[static_cast<std::size_t>(of.other)] ^= Index{1} << 40;
  std::vector<std::int64_t> kept(static_cast<std::size_t>(kPlanDifference), of.found == 0 ? 0 : 77);
  kept[0] = of.found;
  const StepState state{.step = of.step, .first_sample = 24};
  const auto of_hashes = twins.bytes_of(hashes.data(), {of.ranks}, DType::i64),
             found = twins.bytes_of(kept.data(), {kPlanDifference}, DType::i64),
             step_state = twins.bytes_of(&state, {sizeof state}, DType::u8),
             experts = filled({of.ranks, kRows, kTopK}, DType::i32), src = filled({all_slots}, DType::i32),
             cap = filled({all_slots}, DType::i32), take = filled({of.ranks, all_slots}, DType::i32);
  Named want, got;
  twins.run([&](Exec& ex) {
    check_echo_plans(ex, {.hashes = of_hashes.on(ex),
                          .step_state = step_state.on(ex),
                          .experts = experts.on(ex),
                          .src = src.on(ex),
                          .cap = cap.on(ex),
                          .take = take.on(ex),
                          .found = found.on(ex),
                          .every = of.every,
                          .chunk = 1,
                          .layer = 7});
    (&ex == &twins.oracle() ? want : got) = {{"experts", experts.on(ex)},
                                             {"src", src.on(ex)},
                                             {"cap", cap.on(ex)},
                                             {"take", take.on(ex)},
                                             {"found", found.on(ex)}};
  });
  expect_same_bits(twins, want, got);
  return want;
}

TEST_P(DeviceOps, PlansOfClonesThatDiffer) {
  for (const ComparedPlans& of : {ComparedPlans{4, -1, 6, 1},
                                  {4, 2, 6, 1},
                                  {4, 2, 6, 3},
                                  {4, 2, 7, 3},
                                  {4, 3, 0, 3},
                                  {256, 255, 5, 1},
                                  {2, 1, 5, 1, 1},
                                  {1, 0, 5, 1}}) {
    SCOPED_TRACE(::testing::Message() << of.ranks << " ranks, other " << of.other << ", step " << of.step << ", every "
                                      << of.every);
    const Named after = compared_plans(t(), of);
    const bool differs = of.other >= 0 && of.ranks > 1 && of.step % static_cast<std::uint64_t>(of.every) == 0;
    const auto& [experts, src, cap, take, found] =
        std::tie(after[0].second, after[1].second, after[2].second, after[3].second, after[4].second);
    const auto all_are = [](const Tensor& numbers, std::int32_t value) {
      return std::ranges::all_of(numbers.span<std::int32_t>(), [&](std::int32_t each) { return each == value; });
    };
    EXPECT_EQ(all_are(experts, -1), differs);
    EXPECT_EQ(all_are(src, -1), differs);
    EXPECT_EQ(all_are(cap, 0), differs);
    EXPECT_EQ(all_are(take, 0), differs);
    const std::span<const std::int64_t> numbers = found.span<std::int64_t>();
    EXPECT_EQ(numbers[0], differs || of.found != 0 ? 1 : 0);
    if (differs && of.found == 0) {
      EXPECT_EQ(std::vector(numbers.begin() + 1, numbers.begin() + 4), (std::vector<std::int64_t>{1, 7, 24}));
      EXPECT_NE(numbers[static_cast<std::size_t>(4 + of.other)], numbers[4]);
    }
    if (of.found != 0) {
      EXPECT_EQ(numbers[1], 77) << "the first difference stays";
    }
    t().release();
  }
}

}  // namespace
}  // namespace megalith::ops
