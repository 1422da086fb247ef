#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

// RMS norms of q and of k, before they are rotated. qkv [T, G (A/G + 2) D] holds, for each of G kv heads, its A/G q
// heads, its k and its v. G and A are those that this rank holds. With xhat = x rstd, rstd = 1/sqrt(mean(x^2) + eps):
//   out = xhat gamma_q for q, xhat gamma_k for k; v is copied.
// As in RMS norms (norm.h), statistics and gradients of gamma are f64 for f64 tensors and f32 otherwise. A row of zeros
// has rstd 1/sqrt(eps). A NaN spreads over all that is normalised with it, but not into v. Source: Henry et al. 2020,
// arXiv:2010.04245, with RMS norms for l2 norms.

// Over all heads (OLMoE, OLMo 2): one mean over q's A D numbers of all tp ranks, one over k's G D. qk_head_norm.h has
// one per head. Each direction has two ops. Between them the caller all-reduces the first one's [T, 2] over tp: number
// 0 of a row is q's, 1 is k's. total_num_heads and total_num_kv_heads count the heads of all ranks, which these sums
// cover.

/// square_sums = this rank's sums of x^2.
struct QkSquareSums {
  Tensor qkv;          // in   [T, G (A/G + 2) D]
  Tensor square_sums;  // out  [T, 2]
  Index num_heads = 0, num_kv_heads = 0;
};
void qk_square_sums(Exec& ex, const QkSquareSums& args);

/// Each head has a gamma of its own: gamma_q [A D], gamma_k [G D].
struct QkNorm {
  Tensor qkv, square_sums, gamma_q, gamma_k;  // in   [T, G (A/G + 2) D], [T, 2], [A D], [G D]
  Tensor out;                                 // out  as qkv, another tensor
  Index num_heads = 0, num_kv_heads = 0;
  Index total_num_heads = 0, total_num_kv_heads = 0;
  double eps = 1e-5;
};
void qk_norm(Exec& ex, const QkNorm& args);

/// g_xhat_sums = this rank's sums of g xhat, g = dout gamma.
struct QkNormBackwardSums {
  Tensor dout, qkv, square_sums, gamma_q, gamma_k;  // in   as in QkNormBackward
  Tensor g_xhat_sums;                               // out  [T, 2]
  Index num_heads = 0, num_kv_heads = 0;
  Index total_num_heads = 0, total_num_kv_heads = 0;
  double eps = 1e-5;
};
void qk_norm_backward_sums(Exec& ex, const QkNormBackwardSums& args);

/// dqkv = rstd (g - xhat mean(g xhat)) for q and k, dout for v. gamma_q_grad [A D] += sum_t dout xhat, rows summed in
/// fixed blocks. gamma_k_grad [G D] likewise. dqkv may be dout.
struct QkNormBackward {
  Tensor dout, qkv, square_sums, g_xhat_sums;  // in   [T, G (A/G + 2) D], the same, [T, 2], [T, 2]
  Tensor gamma_q, gamma_k;                     // in   [A D], [G D]
  Tensor dqkv;                                 // out  as qkv
  Tensor gamma_q_grad, gamma_k_grad;           // out, accumulated
  Index num_heads = 0, num_kv_heads = 0;
  Index total_num_heads = 0, total_num_kv_heads = 0;
  double eps = 1e-5;
};
void qk_norm_backward(Exec& ex, const QkNormBackward& args);

}  // namespace megalith::ops
