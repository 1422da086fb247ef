#pragma once
#include "megalith/ops/norm.h"

namespace megalith::ops {

// x, residual, sum, y, dy, dx: (T, H) : (H, 1).  bias, gamma, beta, gamma_grad, beta_grad, bias_grad: (H) : (1).
// mean, rstd: (T) : (1).  parts, scratch with the sums of each block of rows, one row per gradient:
// (blocks, gradients, H) : (gradients H, H, 1).

namespace cpu {
void norm_forward(const NormForward& args);
void residual_norm(const ResidualNorm& args);
/// Sums gamma_grad and, of a layer norm, beta_grad.
void norm_backward(const NormBackward& args, const Tensor& parts);
}  // namespace cpu

namespace cuda {
void norm_forward(Stream stream, const NormForward& args);
void residual_norm(Stream stream, const ResidualNorm& args);
/// Sums gamma_grad, beta_grad and, where it is defined, bias_grad.
void norm_backward(Stream stream, const NormBackward& args, const Tensor& parts);
}  // namespace cuda

}  // namespace megalith::ops
