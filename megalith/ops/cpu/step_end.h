#pragma once
#include "megalith/ops/step_end.h"

namespace megalith::ops::cpu {

void step_terms(const StepTerms& args);
void decide_step(const DecideStep& args);
void scale_step_state(const Tensor& optimizer_state, const Tensor& step_state);

}  // namespace megalith::ops::cpu
