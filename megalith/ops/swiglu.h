#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

// The activation of a gated MLP. One GEMM makes gate and up. gate_up [T, 2F] holds the gate and the up of every ffn
// unit side by side ([F, 2] per row). So a shard of units is one contiguous block of the weight's rows. Source: Shazeer
// 2020, arXiv:2002.05202.

/// y = silu(gate) * up, silu(z) = z / (1 + e^-z).
struct Swiglu {
  Tensor gate_up;  // in   [T, 2F]
  Tensor y;        // out  [T, F]
};
void swiglu(Exec& ex, const Swiglu& args);

/// dgate = dy * up * silu'(gate), dup = dy * silu(gate); silu'(z) = s (1 + z (1 - s)), s = 1 / (1 + e^-z).
struct SwigluBackward {
  Tensor gate_up, dy;  // in   [T, 2F], [T, F]
  Tensor dgate_up;     // out  [T, 2F]; may be gate_up
};
void swiglu_backward(Exec& ex, const SwigluBackward& args);

}  // namespace megalith::ops
