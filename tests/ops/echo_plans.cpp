#include "tests/ops/echo_plans.h"

#include <algorithm>

#include "megalith/base/hash.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops {
namespace {

/// In host memory, when all that was submitted has run.
template <class T>
std::vector<T> numbers_in(Exec& ex, const Tensor& tensor) {
  std::vector<T> values(at(tensor.numel()));
  ex.copy(values.data(), tensor.raw(), tensor.bytes());
  ex.synchronize();
  return values;
}

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(mix64(seed + 1)) {}
  /// In [0, end).
  Index below(Index end) {
    state_ = hash_combine(state_, 1);
    return static_cast<Index>((state_ >> 33) % static_cast<std::uint64_t>(end));
  }

 private:
  std::uint64_t state_;
};

/// Counts of one of four kinds: uniform, with a heavy tail, with one hot expert, sparse.
Ints random_counts(Draws& draws, Index ranks, Index experts) {
  const Index kind = draws.below(4), hot = draws.below(experts);
  Ints weight(at(experts));
  for (std::int32_t& of : weight) of = static_cast<std::int32_t>(Index{1} << draws.below(kind == 1 ? 14 : 2));
  Ints counts(at(ranks * experts));
  for (Index i = 0; i < ranks * experts; ++i) {
    std::int32_t& count = counts[at(i)];
    count = static_cast<std::int32_t>(draws.below(40));
    if (kind == 1) count = static_cast<std::int32_t>(draws.below(2 * weight[at(i % experts)]));
    if (kind == 2 && i % experts == hot) count += static_cast<std::int32_t>(draws.below(100000));
    if (kind == 3) count = draws.below(8) == 0 ? count : 0;
  }
  return counts;
}

}  // namespace

EchoCase random_echo_case(int number) {
  Draws draws(static_cast<std::uint64_t>(number));
  EchoCase of{.ranks = 1 + draws.below(1 + draws.below(1 + draws.below(64))), .slots = draws.below(9)};
  of.experts = of.ranks * (1 + draws.below(draws.below(8) == 0 ? 16 : 5));
  of.counts = random_counts(draws, of.ranks, of.experts);
  if (draws.below(2) == 0) of.min_pairs = draws.below(200);
  return of;
}

PlannedEcho planned_echo(const EchoCase& of, Device device) {
  Exec ex(device);
  ex.poison_new_tensors();
  const Tensor counts = ex.tensor({of.ranks, of.experts}, DType::i32);
  ex.copy(counts.raw(), of.counts.data(), counts.bytes());
  const EchoPlan plan = make_echo_plan(ex, of.ranks, of.experts, of.slots);
  const EchoStages stages = make_echo_stages(ex, of.ranks, of.experts, of.slots);
  plan_echo(ex, {.counts = counts, .plan = plan, .stages = stages, .balance = of.balance, .min_pairs = of.min_pairs});
  const auto ints_of = [&](const Tensor& tensor) { return numbers_in<std::int32_t>(ex, tensor); };
  return {.avg = ints_of(plan.avg)[0],
          .plan_dropped = ints_of(plan.plan_dropped)[0],
          .src = ints_of(plan.src),
          .cap = ints_of(plan.cap),
          .take = ints_of(plan.take),
          .rows = ints_of(plan.rows),
          .load_after = ints_of(plan.load_after),
          .hash = numbers_in<std::uint64_t>(ex, plan.hash)[0],
          .expert_total = ints_of(stages.expert_total),
          .load = ints_of(stages.load),
          .spill = ints_of(stages.spill),
          .spare = ints_of(stages.spare),
          .spill_index = ints_of(stages.spill_index),
          .spare_index = ints_of(stages.spare_index),
          .wanted = ints_of(stages.wanted),
          .moves = ints_of(stages.moves),
          .breadth = ints_of(stages.breadth),
          .room = ints_of(stages.room)};
}

std::int64_t hash_in_step(const EchoCase& of, Device device, std::uint64_t step, Index every, std::int64_t before) {
  Exec ex(device);
  const auto on_device = [&](const void* from, const Shape& shape, DType dtype) {
    const Tensor to = ex.tensor(shape, dtype);
    ex.copy(to.raw(), from, to.bytes());
    return to;
  };
  const StepState state{.step = step};
  EchoPlan plan = make_echo_plan(ex, of.ranks, of.experts, of.slots);
  plan.hash = on_device(&before, {1}, DType::i64);
  plan_echo(ex, {.counts = on_device(of.counts.data(), {of.ranks, of.experts}, DType::i32),
                 .plan = plan,
                 .balance = of.balance,
                 .min_pairs = of.min_pairs,
                 .step_state = on_device(&state, {sizeof state}, DType::u8),
                 .hash_every = every});
  return numbers_in<std::int64_t>(ex, plan.hash)[0];
}

}  // namespace megalith::ops
