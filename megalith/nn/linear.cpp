#include "megalith/nn/linear.h"

#include "megalith/ops/elementwise.h"

namespace megalith::nn {
namespace {

using ops::Transpose;
using ops::Write;

/// x W^T, with the bias where it is given.
Tensor times_transposed(Exec& ex, const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
  Tensor y = ex.tensor({x.dim(0), weight.dim(0)}, x.dtype());
  ops::matmul(ex, {.a = x, .b = weight, .bias = bias, .c = y, .transpose_b = Transpose::yes});
  return y;
}

/// weight.grad += dy^T x, or =; bias_grad += sum of dy's rows where it is given.
void add_weight_gradients(Exec& ex, const Tensor& dy, const Tensor& x, Param& weight, Write write,
                          const Tensor& bias_grad = {}) {
  ops::matmul(
      ex, {.a = dy, .b = x, .c = weight.grad, .row_sums = bias_grad, .transpose_a = Transpose::yes, .write = write});
}

}  // namespace

Tensor ColumnParallelLinear::forward(Exec& ex, const Tensor& x, Saved& saved) const {
  saved.x = x;
  return times_transposed(ex, x, weight_.value, bias_.value);
}

Tensor ColumnParallelLinear::forward_gelu(Exec& ex, const Tensor& x, Tensor& z, Saved& saved) const {
  saved.x = x;
  z = ex.tensor({x.dim(0), weight_.value.dim(0)}, x.dtype());
  Tensor y = ex.tensor(z.shape(), x.dtype());
  ops::matmul_gelu(ex, {.x = x, .w = weight_.value, .bias = bias_.value, .z = z, .y = y});
  return y;
}

comm::Pending ColumnParallelLinear::backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const {
  ops::matmul(ex, {.a = dy, .b = weight_.value, .c = dx});
  return comm::all_reduce(ex, tp_, dx, comm::Reduce::sum);
}

void ColumnParallelLinear::backward_weight(Exec& ex, const Tensor& dy, const Saved& saved, ops::Write write) const {
  add_weight_gradients(ex, dy, saved.x, weight_, write, bias_.grad);
}

void ColumnParallelLinear::backward_weight_without_bias(Exec& ex, const Tensor& dy, const Saved& saved,
                                                        ops::Write write) const {
  add_weight_gradients(ex, dy, saved.x, weight_, write);
}

Tensor RowParallelLinear::forward(Exec& ex, const Tensor& x, Saved& saved) const {
  saved.x = x;
  Tensor y = times_transposed(ex, x, weight_.value);
  comm::all_reduce(ex, tp_, y, comm::Reduce::sum).wait(ex);
  return y;
}

void RowParallelLinear::backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const {
  ops::matmul(ex, {.a = dy, .b = weight_.value, .c = dx});
}

void RowParallelLinear::backward_input_gelu(Exec& ex, const Tensor& dy, const Tensor& z, const Tensor& dz,
                                            const Tensor& bias_grad) const {
  ops::matmul_gelu_backward(ex, {.dy = dy, .w = weight_.value, .z = z, .dz = dz, .bias_grad = bias_grad});
}

void RowParallelLinear::backward_weight(Exec& ex, const Tensor& dy, const Saved& saved, ops::Write write) const {
  add_weight_gradients(ex, dy, saved.x, weight_, write, bias_.grad);
}

}  // namespace megalith::nn
