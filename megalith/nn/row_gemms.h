#pragma once
#include "megalith/nn/fp8_config.h"
#include "megalith/ops/matmul.h"
#include "megalith/ops/quantise.h"

namespace megalith::nn {

// The three GEMMs of a weight W [out, in] with rows of tokens, in the formats of its layer: y = x W^T, dx = dy W,
// dW += dy^T x. With GemmFormat::e4m3 operands are rounded in blocks of 128.

/// The E4M3 operands of a matrix [T, N] that GEMMs of a weight read, by vectors. Both are undefined where these have no
/// FP8 operands.
struct RowOperands {
  ops::Operand straight = {};  ///< [T, N]: of the forward pass, or of the gradient of the input
  ops::Operand turned = {};    ///< [N, T]: of the weight gradient. Undefined: that reads the matrix
  bool is_made = false;        ///< their numbers are written. Else the GEMM rounds the matrix first
  Tensor column_sums = {};     ///< [N] f32: the op that rounds the matrix adds the sums of its columns; undefined: none
};
/// Memory for the operands of a matrix [rows, columns] in GEMMs of these formats. `turned`: also for the weight
/// gradient, where that has FP8 operands.
RowOperands make_row_operands(Exec& ex, const GemmFormats& formats, const Shape& shape, bool turned);

/// c = a W^T + bias (transpose_b) or c = a W. Fills `operands` of a unless they are made, and takes memory of its own
/// for them if they are undefined. a may be undefined with operands that are made. c is overwritten.
void multiply_rows(Exec& ex, const GemmFormats& formats, RowOperands operands, const ops::Matmul& args);

/// c += a^T b, or =, of a = dy and b = x; bias_grad += the sum of dy's rows, where it is given. Turned operands are
/// read in place of dy or x where they are given.
void add_weight_gradient(Exec& ex, GemmFormat format, const ops::Matmul& args, const ops::Operand& dy_turned = {},
                         const ops::Operand& x_turned = {});

}  // namespace megalith::nn
