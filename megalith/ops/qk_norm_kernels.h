#pragma once
#include "megalith/ops/qk_norm.h"

namespace megalith::ops {

// qkv, out, dout, dqkv: (T, G, A/G + 2, D) : ((A + 2G) D, (A/G + 2) D, D, 1), per kv head its q heads, its k, its v.
// gamma_q (A, D) : (D, 1), gamma_k (G, D) : (D, 1); square_sums, g_xhat_sums (T, 2) : (2, 1).

namespace cpu {
void qk_square_sums(const QkSquareSums& args);
void qk_norm(const QkNorm& args);
void qk_norm_backward_sums(const QkNormBackwardSums& args);
/// parts, scratch: (row_blocks(T), A + G, D) : ((A + G) D, D, 1).
void qk_norm_backward(const QkNormBackward& args, const Tensor& parts);
}  // namespace cpu

namespace cuda {
void qk_square_sums(Stream stream, const QkSquareSums& args);
void qk_norm(Stream stream, const QkNorm& args);
void qk_norm_backward_sums(Stream stream, const QkNormBackwardSums& args);
/// parts, scratch: (row_parts(T), A, D) : (A D, D, 1) f32 of gamma_q, then (row_parts(T), G, D) : (G D, D, 1) of
/// gamma_k.
void qk_norm_backward(Stream stream, const QkNormBackward& args, const Tensor& parts);
}  // namespace cuda

}  // namespace megalith::ops
