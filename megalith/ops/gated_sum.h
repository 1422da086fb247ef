#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

/// y = routed + sigmoid(gate) shared, per token: gate [T, 1] f32 (f64), or undefined: y = routed + shared.
struct GatedSum {
  Tensor routed, shared;  // in   [T, H]
  Tensor gate;            // in   [T, 1] before the sigmoid, or undefined
  Tensor y;               // out  [T, H]; may be routed
};
void gated_sum(Exec& ex, const GatedSum& args);

/// d_shared = sigmoid(gate) dy; d_gate = sigmoid'(gate) sum over h of dy shared. The gradient of `routed` is dy.
struct GatedSumBackward {
  Tensor dy, shared;  // in   [T, H]
  Tensor gate;        // in   [T, 1]
  Tensor d_shared;    // out  [T, H]
  Tensor d_gate;      // out  [T, 1]
};
void gated_sum_backward(Exec& ex, const GatedSumBackward& args);

}  // namespace megalith::ops
