#include "megalith/ops/step_end.h"

#include <algorithm>

#include "megalith/ops/dispatch.h"
#include "megalith/ops/echo_check.h"
#include "megalith/ops/step_end_kernels.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops {
namespace {

constexpr Index kTotals = sizeof(StepTotals) / sizeof(double), kCounts = sizeof(StepCounts) / sizeof(std::uint64_t);

}  // namespace

void step_terms(Exec& ex, const StepTerms& args) {
  expect_like(args.sum_squares, {round_up(args.sum_squares.numel(), 2)}, DType::f64, "step_terms.sum_squares");
  expect_like(args.loss_sums, {std::clamp<Index>(args.loss_sums.numel(), 1, kMaxLosses)}, DType::f64,
              "step_terms.loss_sums");
  expect_like(args.totals, {kTotals}, DType::f64, "step_terms.totals");
  expect_like(args.counts, {kCounts}, DType::u64, "step_terms.counts");
  expect_struct<StepOutcome>(args.outcome, "step_terms.outcome");
  if (args.overflow) expect_like(args.overflow, {2}, DType::i64, "step_terms.overflow");
  if (args.plans) expect_like(args.plans, {kPlanDifference}, DType::i64, "step_terms.plans");
  run_kernel(
      ex,
      {.name = "step_terms",
       .reads = {args.sum_squares, args.loss_sums, args.counts, args.overflow, args.plans},
       .writes = {args.totals, args.counts, args.outcome}},
      [args] { cpu::step_terms(args); }, [args](auto&, auto stream) { cuda::step_terms(stream, args); });
}

void decide_step(Exec& ex, const DecideStep& args) {
  expect_like(args.totals, {kTotals}, DType::f64, "decide_step.totals");
  expect_like(args.counts, {kCounts}, DType::u64, "decide_step.counts");
  expect_struct<OptimizerState>(args.state, "decide_step.state");
  expect_struct<StepVerdict>(args.verdict, "decide_step.verdict");
  expect_struct<StepOutcome>(args.outcome, "decide_step.outcome");
  run_kernel(
      ex,
      {.name = "decide_step",
       .reads = {args.totals, args.counts, args.state, args.outcome},
       .writes = {args.state, args.verdict, args.outcome}},
      [args] { cpu::decide_step(args); }, [args](auto&, auto stream) { cuda::decide_step(stream, args); });
}

void scale_step_state(Exec& ex, const Tensor& optimizer_state, const Tensor& step_state, ScaledLoss loss) {
  expect_struct<OptimizerState>(optimizer_state, "scale_step_state.optimizer_state");
  expect_struct<StepState>(step_state, "scale_step_state.step_state");
  run_kernel(
      ex, {.name = "scale_step_state", .reads = {optimizer_state, step_state}, .writes = {step_state}},
      [=] { cpu::scale_step_state(optimizer_state, step_state, loss); },
      [=](auto&, auto stream) { cuda::scale_step_state(stream, optimizer_state, step_state, loss); });
}

}  // namespace megalith::ops
