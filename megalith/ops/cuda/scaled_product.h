#pragma once
#include <array>
#include <string>

#include "megalith/ops/cuda/gemm_operands.h"
#include "megalith/ops/scaled_matmul.h"

namespace megalith::ops::cuda {

// scaled_matmul() by our own kernel for Hopper GPUs. Its sums do not depend on its form, nor on other rows.

/// Queries the GPU before the first step, because products may be captured into graphs.
void prepare_scaled_product(Exec& ex);
/// Why our kernel does not compute a GEMM of operands in E4M3, with the rule; empty: it does.
std::string why_no_scaled_product(Exec& ex, const GemmProblem& problem);
/// Its forms, the one that is expected to be faster first.
std::array<ScaledKernel, 2> scaled_forms(Exec& ex, const GemmProblem& problem);
/// Whether the first of them is expected to be faster than cuBLASLt.
bool is_scaled_product_faster(Exec& ex, const GemmProblem& problem);
/// m, n and k are not 0.
void scaled_product(Exec& ex, Stream stream, ScaledKernel form, const GemmProblem& problem,
                    const GemmOperands& operands);

}  // namespace megalith::ops::cuda
