#pragma once
#include "megalith/ops/qk_head_norm.h"

namespace megalith::ops {

// qkv, out, dout, dqkv: (T, G, A/G + 2, D) : ((A + 2G) D, (A/G + 2) D, D, 1), per kv head its q heads, its k, its v.
// gamma_q, gamma_k and their gradients: (D) : (1).  rstd: (T, G, A/G + 1) : (A + G, A/G + 1, 1).
// parts, scratch: (row_parts(T), 2, D) : (2 D, D, 1), of gamma_q and gamma_k.

namespace cpu {
void qk_head_norm(const QkHeadNorm& args);
void qk_head_norm_backward(const QkHeadNormBackward& args, const Tensor& parts);
}  // namespace cpu

namespace cuda {
void qk_head_norm(Stream stream, const QkHeadNorm& args);
void qk_head_norm_backward(Stream stream, const QkHeadNormBackward& args, const Tensor& parts);
}  // namespace cuda

}  // namespace megalith::ops
