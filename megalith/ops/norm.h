#pragma once
#include "megalith/tensor/exec.h"

namespace megalith::ops {

/// y = (x - mean) * rstd * gamma + beta per row, rstd = 1/sqrt(var + eps), var the mean square deviation.
/// Statistics are f64 for f64 tensors and f32 otherwise. Source: Ba et al. 2016, arXiv:1607.06450.
struct LayerNormForward {
  Tensor x, gamma, beta;  // in   [T, H], [H], [H]
  Tensor y, mean, rstd;   // out  [T, H], [T], [T]
  double eps = 1e-5;
};
void layer_norm_forward(Exec& ex, const LayerNormForward& args);

/// dx = d(loss)/dx, plus `residual` when that is given (the gradient that flows past the norm): one pass instead of
/// two. dx may be dy or residual.
struct LayerNormBackward {
  Tensor dy, x, gamma, mean, rstd;  // in   [T, H], [T, H], [H], [T], [T]
  Tensor residual;                  // in   [T, H] or undefined
  Tensor dx;                        // out  [T, H]
};
void layer_norm_backward(Exec& ex, const LayerNormBackward& args);

/// gamma_grad [H] += sum_t dy * xhat; beta_grad [H] += sum_t dy. Rows are summed in fixed blocks.
struct LayerNormWeightBackward {
  Tensor dy, x, mean, rstd;      // in
  Tensor gamma_grad, beta_grad;  // out, accumulated
};
void layer_norm_weight_backward(Exec& ex, const LayerNormWeightBackward& args);

}  // namespace megalith::ops
