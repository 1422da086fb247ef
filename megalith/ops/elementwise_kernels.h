#pragma once
#include "megalith/ops/elementwise.h"

namespace megalith::ops {

// x, y, z, dy, dz: (T, F) : (F, 1).  bias, bias_grad: (F) : (1).  Of dropouts and residual sums: (T, H) : (H, 1).
// parts, scratch of bias_backward: (row_parts, F) : (F, 1).  add, fill, scale: any shape, as (N) : (1).

namespace cpu {
void add_bias(const Tensor& x, const Tensor& bias);
void bias_backward(const Tensor& dy, const Tensor& bias_grad, const Tensor& parts);
void bias_gelu(const BiasGelu& args);
void gelu(const Gelu& args);
void gelu_backward(const GeluBackward& args);
void tanh_forward(const Tensor& x, const Tensor& y);
void tanh_backward(const TanhBackward& args);
void bias_dropout_residual(const BiasDropoutResidual& args);
void dropout_backward(const DropoutBackward& args);
void add(const Tensor& a, const Tensor& b, const Tensor& out);
void fill(const Tensor& x, double value);
void scale(const Tensor& x, double factor);
}  // namespace cpu

namespace cuda {
void add_bias(Stream stream, const Tensor& x, const Tensor& bias);
void bias_backward(Stream stream, const Tensor& dy, const Tensor& bias_grad, const Tensor& parts);
void bias_gelu(Stream stream, const BiasGelu& args);
void gelu(Stream stream, const Gelu& args);
void gelu_backward(Stream stream, const GeluBackward& args);
void tanh_forward(Stream stream, const Tensor& x, const Tensor& y);
void tanh_backward(Stream stream, const TanhBackward& args);
/// The residual may be undefined here: out = dropout(x + bias).
void bias_dropout_residual(Stream stream, const BiasDropoutResidual& args);
void dropout_backward(Stream stream, const DropoutBackward& args);
void add(Stream stream, const Tensor& a, const Tensor& b, const Tensor& out);
void fill(Stream stream, const Tensor& x, double value);
void scale(Stream stream, const Tensor& x, double factor);
}  // namespace cuda

}  // namespace megalith::ops
