#pragma once
#include <algorithm>

#include "megalith/ops/elementwise.h"

namespace megalith::ops::cuda {

/// How the rows of a sum over rows are cut: `count` parts of `rows` rows each, the last one perhaps shorter. A function
/// of the shape only, so that sums have the same bits on every GPU.
struct RowParts {
  Index count = 0, rows = 0;
};
inline RowParts cut_rows(Index rows, Index most_parts, Index fewest_rows) {
  const Index rows_per_part = std::max(fewest_rows, ceil_div(rows, most_parts));
  return {ceil_div(rows, rows_per_part), rows_per_part};
}

/// sums [columns] += parts[0, 0] + parts[1, 0] + ... and more_sums likewise += parts[., 1], in a fixed order.
/// parts [count, 1, columns], or [count, 2, columns] with more_sums.
void add_parts(Stream stream, const float* parts, Index count, Index columns, float* sums, float* more_sums = nullptr);

void add_bias(Stream stream, const Tensor& x, const Tensor& bias);
inline RowParts bias_backward_cut(Index rows) { return cut_rows(rows, 256, 32); }
inline Index bias_backward_parts(Index rows) { return bias_backward_cut(rows).count; }
/// bias_grad [F] f32; parts: scratch f32 [bias_backward_parts(T), F]
void bias_backward(Stream stream, const Tensor& dy, const Tensor& bias_grad, const Tensor& parts);
void bias_gelu(Stream stream, const BiasGelu& args);
void gelu_backward(Stream stream, const GeluBackward& args);
/// The residual may be undefined here: out = dropout(x + bias).
void bias_dropout_residual(Stream stream, const BiasDropoutResidual& args);
void dropout_backward(Stream stream, const DropoutBackward& args);
void add(Stream stream, const Tensor& a, const Tensor& b, const Tensor& out);
void fill(Stream stream, const Tensor& x, double value);
void scale(Stream stream, const Tensor& x, double factor);
/// Any two of f64, f32, bf16, f16.
void cast(Stream stream, const Tensor& from, const Tensor& to);

}  // namespace megalith::ops::cuda
