#include "megalith/nn/row_gemms.h"

#include "megalith/ops/elementwise.h"
#include "megalith/ops/scaled_matmul.h"

namespace megalith::nn {
namespace {

using ops::Transpose;

/// What a weight gradient reads of x [T, N].
ops::Operand turned_operand(Exec& ex, const Tensor& x, const ops::Operand& made) {
  if (made) return made;
  const ops::Operand turned = ops::make_operand(ex, x.dim(1), x.dim(0), ops::ScaleBlocks::vectors);
  ops::quantise(ex, {.x = x, .turned = turned});
  return turned;
}

}  // namespace

RowOperands make_row_operands(Exec& ex, const GemmFormats& formats, const Shape& shape, bool turned) {
  if (formats.rows == GemmFormat::compute) return {};
  RowOperands operands{.straight = ops::make_operand(ex, shape[0], shape[1], ops::ScaleBlocks::vectors)};
  if (turned && formats.weight_grad == GemmFormat::e4m3)
    operands.turned = ops::make_operand(ex, shape[1], shape[0], ops::ScaleBlocks::vectors);
  return operands;
}

void multiply_rows(Exec& ex, const GemmFormats& formats, RowOperands operands, const ops::Matmul& args) {
  if (formats.rows == GemmFormat::compute) return ops::matmul(ex, args);
  const Tensor& weight = args.b;
  const Index columns = args.c.dim(1), depth = weight.numel() / columns;
  if (!operands.straight) operands = make_row_operands(ex, formats, args.a.shape(), false);
  if (!operands.is_made) {
    ops::quantise(
        ex,
        {.x = args.a, .straight = operands.straight, .turned = operands.turned, .column_sums = operands.column_sums});
  }
  const ops::Operand b = ops::make_operand(ex, columns, depth, ops::ScaleBlocks::squares);
  if (args.transpose_b == Transpose::yes)
    ops::quantise(ex, {.x = weight, .straight = b});
  else
    ops::quantise(ex, {.x = weight, .turned = b});
  ops::scaled_matmul(ex, {.a = operands.straight, .b = b, .bias = args.bias, .c = args.c, .sm_margin = args.sm_margin});
}

void add_weight_gradient(Exec& ex, GemmFormat format, const ops::Matmul& args, const ops::Operand& dy_turned,
                         const ops::Operand& x_turned) {
  if (format == GemmFormat::compute) return ops::matmul(ex, args);
  const ops::Operand a = turned_operand(ex, args.a, dy_turned), b = turned_operand(ex, args.b, x_turned);
  ops::scaled_matmul(ex, {.a = a, .b = b, .c = args.c, .write = args.write, .sm_margin = args.sm_margin});
  if (args.bias_grad) ops::bias_backward(ex, args.a, args.bias_grad);
}

}  // namespace megalith::nn
