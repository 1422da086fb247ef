#pragma once
#include "megalith/ops/cuda/common.cuh"

// SiLU of one f32 number. The kernels of gated MLPs and the epilogues of GEMMs share it.

namespace megalith::ops::cuda {

/// 1 / (1 + e^-z). The approximations are 2 units of the last place of f32 each.
inline __device__ float silu_gate(float z) { return reciprocal_approx(1.0f + exp2_approx(-kLog2E * z)); }

}  // namespace megalith::ops::cuda
