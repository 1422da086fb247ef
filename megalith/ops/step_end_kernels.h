#pragma once
#include "megalith/ops/step_end.h"

namespace megalith::ops {

// sum_squares: (groups, 2) : (2, 1).  loss_sums: (losses) : (1).  The other tensors are one struct each (step_end.h).

namespace cpu {
void step_terms(const StepTerms& args);
void decide_step(const DecideStep& args);
void scale_step_state(const Tensor& optimizer_state, const Tensor& step_state, ScaledLoss loss);
}  // namespace cpu

namespace cuda {
void step_terms(Stream stream, const StepTerms& args);
void decide_step(Stream stream, const DecideStep& args);
void scale_step_state(Stream stream, const Tensor& optimizer_state, const Tensor& step_state, ScaledLoss loss);
}  // namespace cuda

}  // namespace megalith::ops
