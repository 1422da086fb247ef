#pragma once
#include <algorithm>
#include <initializer_list>

#include "megalith/ops/elementwise.h"

namespace megalith::ops::cuda {

/// How the rows of a sum over rows are cut: `count` parts of `rows` rows each, the last one perhaps shorter. The rows
/// of a part are added one after the other, then the parts.
struct RowParts {
  Index count = 0, rows = 0;
};
/// 264 parts up to 8192 rows, else 528: two or four for each SM of an H200, of 8 rows at least. Measured there with 264
/// / 528 / 1024 parts, in us of layer norm's backward pass, bf16:
///   8192 x 1536 47 / 57 / 70, 16384 x 1024 59 / 56 / 61, 32768 x 768 98 / 69 / 83.
/// It is the same on any GPU and for every op, because sums follow from the parts.
inline RowParts cut_rows(Index rows) {
  const Index rows_per_part = std::max<Index>(8, ceil_div(rows, rows <= 8192 ? 264 : 528));
  return {ceil_div(rows, rows_per_part), rows_per_part};
}
inline Index row_parts(Index rows) { return cut_rows(rows).count; }

/// Number i of each of at most three sums [columns] += parts[0, i] + parts[1, i] + ..., in a fixed order. Null pointers
/// are left out. parts [count, sums, columns]
void add_parts(Stream stream, const float* parts, Index count, Index columns, std::initializer_list<float*> sums);

void add_bias(Stream stream, const Tensor& x, const Tensor& bias);
/// bias_grad [F] f32; parts: scratch f32 [row_parts(T), F]
void bias_backward(Stream stream, const Tensor& dy, const Tensor& bias_grad, const Tensor& parts);
void bias_gelu(Stream stream, const BiasGelu& args);
void gelu(Stream stream, const Gelu& args);
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
