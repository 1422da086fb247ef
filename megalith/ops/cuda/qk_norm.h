#pragma once
#include "megalith/ops/cuda/elementwise.h"
#include "megalith/ops/qk_norm.h"

namespace megalith::ops::cuda {

void qk_head_norm(Stream stream, const QkHeadNorm& args);
/// parts: scratch f32 [row_parts(T), 2, D]
void qk_head_norm_backward(Stream stream, const QkHeadNormBackward& args, const Tensor& parts);
void qk_square_sums(Stream stream, const QkSquareSums& args);
void qk_norm(Stream stream, const QkNorm& args);
void qk_norm_backward_sums(Stream stream, const QkNormBackwardSums& args);
/// parts: scratch f32 [row_parts(T), (A + G) D]: first all parts of gamma_q's sums, then all of gamma_k's
void qk_norm_backward(Stream stream, const QkNormBackward& args, const Tensor& parts);

}  // namespace megalith::ops::cuda
