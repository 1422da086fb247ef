#pragma once
#include "megalith/ops/elementwise.h"

namespace megalith::ops {

/// Columns that a norm's row may have on a GPU: a block of 1024 threads, of 16 columns each, keeps it in registers.
inline constexpr Index kMaxNormColumnsOnGpu = 16384;

/// y = (x - mean) * rstd * gamma + beta per row, rstd = 1/sqrt(var + eps), var the mean square deviation.
/// Statistics are f64 for f64 tensors and f32 otherwise. Source: Ba et al. 2016, arXiv:1607.06450.
struct LayerNormForward {
  Tensor x, gamma, beta;  // in   [T, H], [H], [H]
  Tensor y, mean, rstd;   // out  [T, H], [T], [T]
  double eps = 1e-5;
};
void layer_norm_forward(Exec& ex, const LayerNormForward& args);

/// The end of a region of a Transformer block and the norm of the next, in one pass. sum = residual + dropout(x + bias)
/// as in bias_dropout_residual (elementwise.h), y = layer norm of sum.
///   x, residual, sum, y [T, H]; bias, gamma, beta [H]; mean, rstd [T].
struct ResidualLayerNorm {
  Tensor x, bias, residual, gamma, beta;  // in; bias may be undefined (no bias)
  Tensor sum, y, mean, rstd;              // out
  double eps = 1e-5;
  Dropout dropout;
};
void residual_layer_norm(Exec& ex, const ResidualLayerNorm& args);

/// The whole backward pass at once. dx = d(loss)/dx, plus `residual` where it is defined: the gradient that flows past
/// the norm. gamma_grad [H] += sum_t dy * xhat; beta_grad [H] += sum_t dy, both f32 (f64 for f64), rows summed in fixed
/// blocks. dx may be dy or residual. Where dx is the gradient of a sum that a bias went into, bias_grad is that bias's:
/// += sum_t dx. It has the bits of Matmul::bias_grad, which would need one more read of dx.
struct LayerNormBackward {
  Tensor dy, x, gamma, mean, rstd;  // in   [T, H], [T, H], [H], [T], [T]
  Tensor residual;                  // in   [T, H] or undefined
  Tensor dx;                        // out  [T, H]
  Tensor gamma_grad, beta_grad;     // out, accumulated
  Tensor bias_grad = {};            // out, accumulated [H]; may be undefined
};
void layer_norm_backward(Exec& ex, const LayerNormBackward& args);

/// y = x * rstd * gamma per row, rstd = 1/sqrt(mean(x^2) + eps): a layer norm without the mean and without beta.
/// Statistics are f64 for f64 tensors and f32 otherwise. Source: Zhang and Sennrich 2019, arXiv:1910.07467.
struct RmsNormForward {
  Tensor x, gamma;  // in   [T, H], [H]
  Tensor y, rstd;   // out  [T, H], [T]
  double eps = 1e-5;
};
void rms_norm_forward(Exec& ex, const RmsNormForward& args);

/// As ResidualLayerNorm: sum = residual + dropout(x + bias), y = RMS norm of sum, in one pass.
///   x, residual, sum, y [T, H]; bias, gamma [H]; rstd [T].
struct ResidualRmsNorm {
  Tensor x, bias, residual, gamma;  // in; bias may be undefined (no bias)
  Tensor sum, y, rstd;              // out
  double eps = 1e-5;
  Dropout dropout;
};
void residual_rms_norm(Exec& ex, const ResidualRmsNorm& args);

/// The whole backward pass at once, as LayerNormBackward. With xhat = x rstd and g = dy gamma:
///   dx = rstd (g - xhat mean(g xhat)) + residual; gamma_grad [H] += sum_t dy * xhat. dx may be dy or residual.
struct RmsNormBackward {
  Tensor dy, x, gamma, rstd;  // in   [T, H], [T, H], [H], [T]
  Tensor residual;            // in   [T, H] or undefined
  Tensor dx;                  // out  [T, H]
  Tensor gamma_grad;          // out, accumulated [H]
  Tensor bias_grad = {};      // out, accumulated [H]; may be undefined
};
void rms_norm_backward(Exec& ex, const RmsNormBackward& args);

}  // namespace megalith::ops
