#pragma once
#include <string>

#include "megalith/ops/scaled_matmul.h"

namespace megalith::ops::cuda {

/// Queries the GPU before the first step, because products may be captured into graphs.
void prepare_scaled_product(Exec& ex);
/// Why our own kernels do not compute a GEMM, with the rule; empty: they do.
std::string why_no_scaled_product(Exec& ex, const ScaledMatmul& args);
/// scaled_matmul() by our own kernel for Hopper GPUs, in the form that args.kernel names, or else in the one that is
/// expected to be fastest. The sums do not depend on the form. The result is not empty, and neither is K.
void scaled_product(Exec& ex, Stream stream, const ScaledMatmul& args, int sm_margin);

}  // namespace megalith::ops::cuda
