#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/step_end_kernels.h"

// One thread each: they decide from a few numbers of a step, and move under 200 bytes. That is too little to compare
// with a roof: 1.9 us each on an H200, most of it the launch of a kernel.

namespace megalith::ops::cuda {
namespace {

__global__ void step_terms_kernel(const double* sum_squares, Index groups, const double* loss_sums, Index losses,
                                  LossShare share, const std::int64_t* overflow, const std::int64_t* plans,
                                  StepTotals* totals, StepCounts* counts, StepOutcome* outcome) {
  *totals = terms_of(add_up(sum_squares, groups, loss_sums, losses), share, *counts, *outcome);
  if (overflow != nullptr) counts->without_rows = static_cast<std::uint64_t>(*overflow);
  if (plans != nullptr) counts->calls += static_cast<std::uint64_t>(*plans);
}

__global__ void decide_step_kernel(const StepRules rules, const StepTotals* totals, const StepCounts* counts,
                                   OptimizerState* state, StepVerdict* verdict, StepOutcome* outcome) {
  *verdict = decide(rules, *totals, *counts, *state, *outcome);
}

__global__ void scale_step_state_kernel(const OptimizerState* optimizer_state, StepState* step_state, ScaledLoss loss) {
  step_state->loss_scale *= step_scale(*optimizer_state, loss);
}

}  // namespace

void step_terms(Stream stream, const StepTerms& args) {
  launch({stream, 1, 1}, step_terms_kernel, pointer<const double>(args.sum_squares), args.sum_squares.numel() / 2,
         pointer<const double>(args.loss_sums), args.loss_sums.numel(), args.loss,
         args.overflow ? pointer<const std::int64_t>(args.overflow) : nullptr,
         args.plans ? pointer<const std::int64_t>(args.plans) : nullptr, pointer<StepTotals>(args.totals),
         pointer<StepCounts>(args.counts), pointer<StepOutcome>(args.outcome));
}

void decide_step(Stream stream, const DecideStep& args) {
  launch({stream, 1, 1}, decide_step_kernel, args.rules, pointer<const StepTotals>(args.totals),
         pointer<const StepCounts>(args.counts), pointer<OptimizerState>(args.state),
         pointer<StepVerdict>(args.verdict), pointer<StepOutcome>(args.outcome));
}

void scale_step_state(Stream stream, const Tensor& optimizer_state, const Tensor& step_state, ScaledLoss loss) {
  launch({stream, 1, 1}, scale_step_state_kernel, pointer<const OptimizerState>(optimizer_state),
         pointer<StepState>(step_state), loss);
}

}  // namespace megalith::ops::cuda
