#include "megalith/nn/activation_operands.h"

namespace megalith::nn {

void activate(Exec& ex, ops::Activation activation, const Tensor& z, const ActivationPass& pass, Tensor& y,
              RowOperands& operands) {
  const Tensor rows = pass.sub_batch.of(z);
  const Index units = activation == ops::Activation::swiglu ? z.dim(1) / 2 : z.dim(1);
  // Turned blocks of a part of the rows are not blocks of the whole matrix.
  const bool is_turned_kept = pass.is_kept && pass.sub_batch.count == 1;
  operands = make_row_operands(ex, pass.formats, {rows.dim(0), units}, is_turned_kept);
  if (!pass.is_read) operands.straight = {};
  const bool are_numbers_kept = pass.is_kept && !operands.turned;
  if (are_numbers_kept)
    pass.sub_batch.make(ex, y, {z.dim(0), units}, z.dtype());
  else
    y = {};
  ops::quantise_activation(ex, {.z = rows,
                                .y = are_numbers_kept ? pass.sub_batch.of(y) : Tensor(),
                                .straight = operands.straight,
                                .turned = operands.turned,
                                .activation = activation});
  operands.is_made = true;
}

void activate_backward(Exec& ex, const ops::QuantiseActivationBackward& args, const ColumnParallelLinear& first,
                       Tensor& dz, RowOperands& operands) {
  operands = make_row_operands(ex, first.formats(), args.z.shape(), true);
  dz = operands.turned ? Tensor() : ex.tensor_like(args.z);
  ops::QuantiseActivationBackward all = args;
  all.dz = dz;
  all.straight = operands.straight;
  all.turned = operands.turned;
  all.column_sums = first.bias_grad();
  ops::quantise_activation_backward(ex, all);
  operands.is_made = true;
}

}  // namespace megalith::nn
