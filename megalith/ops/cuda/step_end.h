#pragma once
#include "megalith/ops/step_end.h"

namespace megalith::ops::cuda {

void step_terms(Stream stream, const StepTerms& args);
void decide_step(Stream stream, const DecideStep& args);
void scale_step_state(Stream stream, const Tensor& optimizer_state, const Tensor& step_state);

}  // namespace megalith::ops::cuda
