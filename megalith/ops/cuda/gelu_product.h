#pragma once
#include "megalith/ops/matmul_kernels.h"

// The GEMMs of an MLP with GELU in one kernel of our own, for Hopper GPUs. cuBLASLt's GELU epilogues stall its tensor
// cores.

namespace megalith::ops::cuda {

/// Queries the facts about the GPU that the kernels need, before the first step.
void prepare_gelu_product(Exec& ex);

/// Both return false and do nothing where they cannot run: on a GPU other than a Hopper, in a build without sm_90a and
/// for f32. The same holds for sizes that are not multiples of 8 (rows may be any) and for addresses that are not
/// multiples of 16. Sums are f32. Bias, GELU and GELU' are applied to them before they are rounded. The bits are the
/// same every time. sm_margin SMs stay free for other kernels.
bool gelu_product(Exec& ex, Stream stream, const MatmulGelu& args, int sm_margin);
/// The gradient of the bias adds up dz before it is rounded. parts: scratch f32 [gelu_product_parts(T), F] or more
bool gelu_product_backward(Exec& ex, Stream stream, const MatmulGeluBackward& args, const Tensor& parts, int sm_margin);

}  // namespace megalith::ops::cuda
