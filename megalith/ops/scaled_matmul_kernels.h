#pragma once
#include "megalith/ops/scaled_matmul.h"

namespace megalith::ops {

// The values of a (M, K) : (K, 1), of b (N, K) : (K, 1), scales as in quantise_kernels.h.  c (M, N) : (N, 1).

namespace cpu {
void scaled_matmul(const ScaledMatmul& args);
}  // namespace cpu

namespace cuda {
/// By cuBLASLt (gemm.h) or our own kernel (cuda/scaled_product.h). Throws BackendError where it has no kernel.
void scaled_matmul(Exec& ex, Stream stream, const ScaledMatmul& args);
std::string why_no_scaled_matmul(Exec& ex, const ScaledMatmul& args);
}  // namespace cuda

}  // namespace megalith::ops
