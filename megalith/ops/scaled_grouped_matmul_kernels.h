#pragma once
#include <string>

#include "megalith/ops/scaled_grouped_matmul.h"

namespace megalith::ops {

// Operands as in scaled_matmul_kernels.h.  c (M, N) : (N, 1).  dw (G, N, K) : (N K, K, 1).
// groups.begin, groups.rows (G) : (1) i32.

namespace cpu {
void scaled_grouped_matmul(const ScaledGroupedMatmul& args);
void scaled_grouped_weight_grad(const ScaledGroupedWeightGrad& args);
}  // namespace cpu

namespace cuda {
/// They throw BackendError where the kernel cannot run.
void scaled_grouped_matmul(Exec& ex, Stream stream, const ScaledGroupedMatmul& args);
void scaled_grouped_weight_grad(Exec& ex, Stream stream, const ScaledGroupedWeightGrad& args);
std::string why_no_scaled_grouped_matmul(Exec& ex);
}  // namespace cuda

}  // namespace megalith::ops
