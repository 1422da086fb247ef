#pragma once
#include "megalith/ops/elementwise.h"

namespace megalith::ops {

// Layer norms and RMS norms of rows. A layer norm subtracts the mean of a row and adds beta. An RMS norm does neither:
// its beta, mean and beta_grad are undefined.
//   layer norm: y = (x - mean) * rstd * gamma + beta, rstd = 1/sqrt(var + eps), var the mean square deviation
//   RMS norm:   y = x * rstd * gamma, rstd = 1/sqrt(mean(x^2) + eps)
// Statistics are f64 for f64 tensors and f32 otherwise. Sources: Ba et al. 2016, arXiv:1607.06450; Zhang and Sennrich
// 2019, arXiv:1910.07467.

/// Columns that a norm's row may have on a GPU: a block of 1024 threads, of 16 columns each, keeps it in registers.
inline constexpr Index kMaxNormColumnsOnGpu = 16384;

struct NormForward {
  Tensor x, gamma, beta = {};  // in   [T, H], [H], [H]
  Tensor y, mean = {}, rstd;   // out  [T, H], [T], [T]
  double eps = 1e-5;
};
void norm_forward(Exec& ex, const NormForward& args);

/// The end of a region of a Transformer block and the norm of the next, in one pass. sum = residual + dropout(x + bias)
/// as in bias_dropout_residual (elementwise.h), y = norm of sum.
///   x, residual, sum, y [T, H]; bias, gamma, beta [H]; mean, rstd [T].
struct ResidualNorm {
  Tensor x, bias, residual, gamma, beta = {};  // in; bias may be undefined (no bias)
  Tensor sum, y, mean = {}, rstd;              // out
  double eps = 1e-5;
  Dropout dropout;
};
void residual_norm(Exec& ex, const ResidualNorm& args);

/// The whole backward pass at once. With xhat = (x - mean) rstd and g = dy gamma:
///   dx = rstd (g - mean(g) - xhat mean(g xhat)) + residual, without mean(g) for an RMS norm
/// `residual` is the gradient that flows past the norm. With `more_dy`, which excludes a residual, the gradient of y is
/// dy + more_dy: y is then read by a sublayer and by the residual sum after it (post-norm). That sum is rounded to the
/// type of both, as where it is sent to the stage before: stages change no bit.
/// gamma_grad [H] += sum_t dy * xhat; beta_grad [H] += sum_t dy, both f32 (f64 for f64), rows summed in fixed blocks.
/// dx may be dy or residual. Where dx is the gradient of a sum that a bias went into, bias_grad is that bias's: +=
/// sum_t dx. It has the bits of Matmul::bias_grad, which would need one more read of dx.
struct NormBackward {
  Tensor dy, x, gamma, mean = {}, rstd;  // in   [T, H], [T, H], [H], [T], [T]
  Tensor residual;                       // in   [T, H] or undefined
  Tensor more_dy = {};                   // in   [T, H] or undefined
  Tensor dx;                             // out  [T, H]
  Tensor gamma_grad, beta_grad = {};     // out, accumulated [H], [H]
  Tensor bias_grad = {};                 // out, accumulated [H]; may be undefined
};
void norm_backward(Exec& ex, const NormBackward& args);

}  // namespace megalith::ops
