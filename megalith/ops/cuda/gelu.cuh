#pragma once
#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/matmul.h"  // GeluForm

// GELU (ops/elementwise.h) of one f32 number. The map kernels and the epilogues of GEMMs share the tanh form.

namespace megalith::ops::cuda {

inline constexpr float kGeluCubic = 0.044715f;
inline constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;  // 2 sqrt(2 / pi)

/// (1 + tanh(u)) / 2 with u = sqrt(2/pi) (z + 0.044715 z^3), as 1 / (1 + e^-2u): one exp, no cancellation for z < 0.
inline __device__ float gelu_gate(float z) {
  constexpr float kLinear = kLog2E * kTwoSqrtTwoOverPi, kCubic = kLinear * kGeluCubic;
  return reciprocal_approx(1.0f + exp2_approx(-z * (kLinear + kCubic * z * z)));
}

/// gelu'(z) = g + z g (1 - g) 2u', g the gate.
inline __device__ float gelu_slope(float z) {
  const float g = gelu_gate(z);
  const float twice_slope = kTwoSqrtTwoOverPi + 3 * kTwoSqrtTwoOverPi * kGeluCubic * z * z;
  // Far from 0 the gate is exactly 0 or 1 and the slope may be infinite. 0 * inf must not make a NaN there.
  const float bend = g * (1.0f - g);
  return g + (bend == 0.0f ? 0.0f : z * bend * twice_slope);
}

/// What z is multiplied by, and the derivative of the product.
template <GeluForm kForm>
__device__ float gelu_gate_of(float z) {
  if constexpr (kForm == GeluForm::erf)
    return normcdff(z);
  else
    return gelu_gate(z);
}
template <GeluForm kForm>
__device__ float gelu_slope_of(float z) {
  if constexpr (kForm == GeluForm::tanh) return gelu_slope(z);
  constexpr float kOneOverRootOfTwoPi = 0.3989422804014327f;
  const float density = kOneOverRootOfTwoPi * exp2_approx(-0.5f * kLog2E * z * z);
  return normcdff(z) + (density == 0.0f ? 0.0f : z * density);  // no 0 * inf
}

}  // namespace megalith::ops::cuda
