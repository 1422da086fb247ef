#include "megalith/nn/moe/expert_gemms.h"

#include "megalith/ops/quantise_activation.h"
#include "megalith/ops/scaled_grouped_matmul.h"

namespace megalith::nn {

using ops::ScaleBlocks;

RowOperands expert_rows(Exec& ex, const GemmFormats& formats, const Tensor& rows, const ops::GroupRows& groups,
                        bool turned) {
  RowOperands operands = make_row_operands(ex, formats, rows.shape(), turned);
  ops::quantise(ex, {.x = rows, .straight = operands.straight, .turned = operands.turned, .groups = groups});
  operands.is_made = true;
  return operands;
}

ops::Operand turned_expert_rows(Exec& ex, const Tensor& rows, const ops::GroupRows& groups) {
  const ops::Operand operand = ops::make_operand(ex, rows.dim(1), rows.dim(0), ScaleBlocks::vectors);
  ops::quantise(ex, {.x = rows, .turned = operand, .groups = groups});
  return operand;
}

ops::Operand activated_expert_rows(Exec& ex, const Tensor& z, Index units, const ops::GroupRows& groups) {
  const ops::Operand operand = ops::make_operand(ex, z.dim(0), units, ScaleBlocks::vectors);
  const ops::Activation activation = z.dim(1) == units ? ops::Activation::gelu : ops::Activation::swiglu;
  ops::quantise_activation(ex, {.z = z, .straight = operand, .activation = activation, .groups = groups});
  return operand;
}

void multiply_expert_rows(Exec& ex, const ExpertProduct& args) {
  const Index rows = args.weights.dim(0) * args.weights.dim(1), columns = args.weights.dim(2);
  const Tensor w = args.weights.reshaped({rows, columns});
  const ops::Operand b = args.turned ? ops::make_operand(ex, columns, rows, ScaleBlocks::squares)
                                     : ops::make_operand(ex, rows, columns, ScaleBlocks::squares);
  ops::quantise(ex, args.turned ? ops::Quantise{.x = w, .turned = b} : ops::Quantise{.x = w, .straight = b});
  ops::scaled_grouped_matmul(ex, {.a = args.rows, .b = b, .turned = args.turned, .c = args.out, .groups = args.groups});
}

void add_expert_weight_grads(Exec& ex, const ops::Operand& dy_turned, const ops::Operand& x_turned,
                             const ops::GroupedWeightGrad& args) {
  ops::scaled_grouped_weight_grad(ex, {.dy = dy_turned,
                                       .x = x_turned,
                                       .dw = args.dw,
                                       .groups = args.groups,
                                       .write = args.write,
                                       .sm_margin = args.sm_margin});
  if (args.squares) ops::sum_weight_grad_squares(ex, args.dw, args.squares);
}

}  // namespace megalith::nn
