#include "megalith/ops/echo_plan.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/echo_plan_kernels.h"

namespace megalith::ops {
namespace {

constexpr Arguments kPlanEcho{"plan_echo"};

void check_echo_sizes(Index ranks, Index experts, Index slots) {
  if (ranks < 1 || ranks > kMaxEchoRanks || experts < 1 || experts > kMaxEchoExperts || experts % ranks != 0)
    throw ShapeError(str("[plan_echo.counts] ranks, experts = ", ranks, ", ", experts, ": must be 1 to ", kMaxEchoRanks,
                         " ranks, and 1 to ", kMaxEchoExperts, " experts, a multiple of the ranks"));
  if (slots > kMaxEchoSlots)
    throw ShapeError(str("[plan_echo.plan.src] slots of a rank = ", slots, ": must be at most ", kMaxEchoSlots));
}

void check_echo_plan(const EchoPlan& plan, Index ranks, Index experts, Index all_slots) {
  kPlanEcho.like(plan.avg, {1}, DType::i32, "plan.avg");
  kPlanEcho.like(plan.plan_dropped, {1}, DType::i32, "plan.plan_dropped");
  kPlanEcho.like(plan.src, {all_slots}, DType::i32, "plan.src");
  kPlanEcho.like(plan.cap, {all_slots}, DType::i32, "plan.cap");
  kPlanEcho.like(plan.take, {ranks, all_slots}, DType::i32, "plan.take");
  kPlanEcho.like(plan.rows, {ranks, experts + all_slots}, DType::i32, "plan.rows");
  kPlanEcho.like(plan.load_after, {ranks}, DType::i32, "plan.load_after");
  if (plan.hash) kPlanEcho.like(plan.hash, {1}, DType::i64, "plan.hash");
}

void check_echo_stages(const EchoStages& stages, Index ranks, Index experts, Index all_slots) {
  kPlanEcho.like(stages.expert_total, {experts}, DType::i32, "stages.expert_total");
  kPlanEcho.like(stages.load, {ranks}, DType::i32, "stages.load");
  kPlanEcho.like(stages.spill, {experts}, DType::i32, "stages.spill");
  kPlanEcho.like(stages.spare, {ranks}, DType::i32, "stages.spare");
  kPlanEcho.like(stages.spill_index, {experts}, DType::i32, "stages.spill_index");
  kPlanEcho.like(stages.spare_index, {ranks}, DType::i32, "stages.spare_index");
  kPlanEcho.like(stages.wanted, {ranks}, DType::i32, "stages.wanted");
  kPlanEcho.like(stages.moves, {experts + ranks, 3}, DType::i32, "stages.moves");
  kPlanEcho.like(stages.breadth, {ranks, all_slots}, DType::i32, "stages.breadth");
  kPlanEcho.like(stages.room, {all_slots}, DType::i32, "stages.room");
}

}  // namespace

void plan_echo(Exec& ex, const PlanEcho& args) {
  const auto [ranks, experts] = kPlanEcho.dims<2>(args.counts, "counts");
  kPlanEcho.like(args.counts, {ranks, experts}, DType::i32, "counts");
  const Index all_slots = kPlanEcho.dims<1>(args.plan.src, "plan.src")[0];
  check_echo_sizes(ranks, experts, 0);
  if (all_slots % ranks != 0)
    throw ShapeError(str("[plan_echo.plan.src] slots = ", all_slots, ": must be a multiple of the ", ranks, " ranks"));
  check_echo_sizes(ranks, experts, all_slots / ranks);
  check_echo_plan(args.plan, ranks, experts, all_slots);
  const EchoStages& stages = args.stages;
  if (stages.spill) check_echo_stages(stages, ranks, experts, all_slots);
  if (args.min_pairs < 0) throw ShapeError(str("[plan_echo] min_pairs = ", args.min_pairs, ": must be at least 0"));
  if (args.balance == EchoBalance::exact && args.min_pairs != 0)
    throw ShapeError(str("[plan_echo] min_pairs = ", args.min_pairs, ": must be 0 with balance = exact"));
  if (args.step_state) expect_struct<StepState>(args.step_state, "plan_echo.step_state");
  if (args.hash_every < 1) throw ShapeError(str("[plan_echo] hash_every = ", args.hash_every, ": must be at least 1"));
  const Tensor scratch = ex.tensor({echo_scratch_words(ranks, experts, all_slots / ranks)}, DType::i64);
  const EchoPlan& plan = args.plan;
  run_kernel(
      ex,
      {.name = "plan_echo",
       .reads = {args.counts, args.step_state},
       .writes = {plan.avg, plan.plan_dropped, plan.src, plan.cap, plan.take, plan.rows, plan.load_after, plan.hash,
                  stages.expert_total, stages.load, stages.spill, stages.spare, stages.spill_index, stages.spare_index,
                  stages.wanted, stages.moves, stages.breadth, stages.room},
       .scratch = scratch},
      [args, scratch] { cpu::plan_echo(args, scratch); },
      [args, scratch](auto&, auto stream) { cuda::plan_echo(stream, args, scratch); });
}

EchoPlan make_echo_plan(Exec& ex, Index ranks, Index experts, Index slots) {
  check_echo_sizes(ranks, experts, slots);
  const Index all_slots = ranks * slots;
  const auto i32 = [&](const Shape& shape) { return ex.tensor(shape, DType::i32); };
  return {.avg = i32({1}),
          .plan_dropped = i32({1}),
          .src = i32({all_slots}),
          .cap = i32({all_slots}),
          .take = i32({ranks, all_slots}),
          .rows = i32({ranks, experts + all_slots}),
          .load_after = i32({ranks}),
          .hash = ex.tensor({1}, DType::i64)};
}

EchoStages make_echo_stages(Exec& ex, Index ranks, Index experts, Index slots) {
  check_echo_sizes(ranks, experts, slots);
  const Index all_slots = ranks * slots;
  const auto i32 = [&](const Shape& shape) { return ex.tensor(shape, DType::i32); };
  return {.expert_total = i32({experts}),
          .load = i32({ranks}),
          .spill = i32({experts}),
          .spare = i32({ranks}),
          .spill_index = i32({experts}),
          .spare_index = i32({ranks}),
          .wanted = i32({ranks}),
          .moves = i32({experts + ranks, 3}),
          .breadth = i32({ranks, all_slots}),
          .room = i32({all_slots})};
}

}  // namespace megalith::ops
