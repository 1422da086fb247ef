#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

// RMS norms of q and of k as in qk_norm.h, but per head (Qwen3): a mean over the D numbers of one head.
// A head's bits do not depend on how many others there are, so they are the same for any tp.

/// All q heads share gamma_q, and all k share gamma_k. rstd has, for each kv head, its q heads, then its k.
struct QkHeadNorm {
  Tensor qkv, gamma_q, gamma_k;  // in   [T, G (A/G + 2) D], [D], [D]
  Tensor out, rstd;              // out  as qkv, [T, A + G]; out is another tensor than qkv, which backward reads
  Index num_heads = 0, num_kv_heads = 0;
  double eps = 1e-6;
};
void qk_head_norm(Exec& ex, const QkHeadNorm& args);

/// The whole backward pass at once. With g = dout gamma: dqkv = rstd (g - xhat mean(g xhat)) for q and k, dout for v.
/// gamma_q_grad [D] += sum of dout xhat over rows and this rank's q heads, rows summed in fixed blocks. gamma_k_grad
/// likewise. dqkv may be dout.
struct QkHeadNormBackward {
  Tensor dout, qkv, gamma_q, gamma_k, rstd;  // in   [T, G (A/G + 2) D], the same, [D], [D], [T, A + G]
  Tensor dqkv;                               // out  as qkv
  Tensor gamma_q_grad, gamma_k_grad;         // out, accumulated
  Index num_heads = 0, num_kv_heads = 0;
};
void qk_head_norm_backward(Exec& ex, const QkHeadNormBackward& args);

}  // namespace megalith::ops
