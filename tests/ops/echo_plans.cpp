#include "tests/ops/echo_plans.h"

#include <algorithm>

namespace megalith::ops {
namespace {

Ints ints_of(const Tensor& tensor) {
  const std::span<std::int32_t> all = tensor.span<std::int32_t>();
  return {all.begin(), all.end()};
}

}  // namespace

PlannedEcho planned_echo(const EchoCase& of) {
  Exec ex;
  ex.poison_new_tensors();
  const Tensor counts = ex.tensor({of.ranks, of.experts}, DType::i32);
  std::copy(of.counts.begin(), of.counts.end(), counts.data<std::int32_t>());
  const EchoPlan plan = make_echo_plan(ex, of.ranks, of.experts, of.slots);
  const EchoStages stages = make_echo_stages(ex, of.ranks, of.experts, of.slots);
  plan_echo(ex, {.counts = counts, .plan = plan, .stages = stages, .balance = of.balance, .min_pairs = of.min_pairs});
  return {.avg = ints_of(plan.avg)[0],
          .plan_dropped = ints_of(plan.plan_dropped)[0],
          .src = ints_of(plan.src),
          .cap = ints_of(plan.cap),
          .take = ints_of(plan.take),
          .rows = ints_of(plan.rows),
          .load_after = ints_of(plan.load_after),
          .hash = static_cast<std::uint64_t>(*plan.hash.data<std::int64_t>()),
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

}  // namespace megalith::ops
