#pragma once
#include "megalith/ops/matmul.h"

// The products of an MLP with GELU in one kernel of our own, for Hopper GPUs: cuBLASLt's GELU epilogues hold its matrix
// units up.

namespace megalith::ops::cuda {

/// Rows of dz that one row of parts sums.
inline constexpr Index kGeluProductRows = 128;
inline Index gelu_product_parts(Index rows) { return ceil_div(rows, kGeluProductRows); }

/// Asks the GPU what the kernels need to know of it, before the first step.
void prepare_gelu_product(Exec& ex);

/// Both return false, with nothing done, where they cannot do it: on a GPU that is no Hopper, in a build without
/// sm_90a, for f32, for sizes that are no multiples of 8 (rows may be any) and for addresses that are none of 16.
/// Sums are f32; bias, GELU and GELU' are applied to them before they are rounded. The same bits every time. sm_margin
/// multiprocessors stay free for other kernels.
bool gelu_product(Exec& ex, Stream stream, const MatmulGelu& args, int sm_margin);
/// The gradient of the bias adds up dz before it is rounded. parts: scratch f32 [gelu_product_parts(T), F] or more
bool gelu_product_backward(Exec& ex, Stream stream, const MatmulGeluBackward& args, const Tensor& parts, int sm_margin);

}  // namespace megalith::ops::cuda
