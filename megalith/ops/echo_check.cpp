#include "megalith/ops/echo_check.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/echo_check_kernels.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops {

void check_echo_plans(Exec& ex, const CheckEchoPlans& args) {
  constexpr Arguments kCheck{"check_echo_plans"};
  const Index ranks = kCheck.dims<3>(args.experts, "experts")[0], all_slots = kCheck.dims<1>(args.src, "src")[0];
  kCheck.like(args.experts, args.experts.shape(), DType::i32, "experts");
  kCheck.like(args.hashes, {ranks}, DType::i64, "hashes");
  kCheck.like(args.src, {all_slots}, DType::i32, "src");
  kCheck.like(args.cap, {all_slots}, DType::i32, "cap");
  kCheck.like(args.take, {ranks, all_slots}, DType::i32, "take");
  kCheck.like(args.found, {kPlanDifference}, DType::i64, "found");
  expect_struct<StepState>(args.step_state, "check_echo_plans.step_state");
  if (ranks < 1 || ranks > kMaxEchoRanks)
    throw ShapeError(str("[check_echo_plans.experts] ranks = ", ranks, ": must be 1 to ", kMaxEchoRanks));
  if (args.every < 1) throw ShapeError(str("[check_echo_plans] every = ", args.every, ": must be at least 1"));
  run_kernel(
      ex,
      {.name = "check_echo_plans",
       .reads = {args.hashes, args.step_state, args.experts, args.src, args.cap, args.take, args.found},
       .writes = {args.experts, args.src, args.cap, args.take, args.found}},
      [args] { cpu::check_echo_plans(args); }, [args](auto&, auto stream) { cuda::check_echo_plans(stream, args); });
}

}  // namespace megalith::ops
