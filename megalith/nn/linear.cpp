#include "megalith/nn/linear.h"

#include "megalith/ops/elementwise.h"

namespace megalith::nn {
namespace {

using ops::Transpose;
using ops::Write;

// What comes right behind a sum over tp that is in flight leaves it room; later products find it done. These are the
// products of column-parallel layers: their weight gradient follows the sum of their input's gradient, and in a part's
// forward pass they follow the other part's sum.
ops::Beside beside_sum(const comm::Group& tp) {
  return tp.size() > 1 ? ops::Beside::communication : ops::Beside::nothing;
}
ops::Beside beside_other(const Part& part) {
  return part.count > 1 ? ops::Beside::communication : ops::Beside::nothing;
}

/// weight.grad += dy^T x, or =; bias_grad += sum of dy's rows where it is given.
void add_weight_gradients(Exec& ex, const Tensor& dy, const Tensor& x, Param& weight, Write write, ops::Beside beside,
                          const Tensor& bias_grad = {}) {
  ops::matmul(ex, {.a = dy,
                   .b = x,
                   .c = weight.grad,
                   .row_sums = bias_grad,
                   .transpose_a = Transpose::yes,
                   .write = write,
                   .beside = beside});
}

}  // namespace

Tensor ColumnParallelLinear::forward(Exec& ex, const Tensor& x, Saved& saved, const Part& part) const {
  saved.x = x;
  part.make(ex, saved.y, {x.dim(0), weight_.value.dim(0)}, x.dtype());
  ops::matmul(ex, {.a = part.of(x),
                   .b = weight_.value,
                   .bias = bias_.value,
                   .c = part.of(saved.y),
                   .transpose_b = Transpose::yes,
                   .beside = beside_other(part)});
  return saved.y;
}

void ColumnParallelLinear::forward_gelu(Exec& ex, const Tensor& x, Tensor& gelu_y, Saved& saved,
                                        const Part& part) const {
  saved.x = x;
  part.make(ex, saved.y, {x.dim(0), weight_.value.dim(0)}, x.dtype());
  part.make(ex, gelu_y, saved.y.shape(), x.dtype());
  ops::matmul_gelu(ex, {.x = part.of(x),
                        .w = weight_.value,
                        .bias = bias_.value,
                        .z = part.of(saved.y),
                        .y = part.of(gelu_y),
                        .beside = beside_other(part)});
}

comm::Pending ColumnParallelLinear::backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const {
  ops::matmul(ex, {.a = dy, .b = weight_.value, .c = dx});
  return comm::all_reduce(ex, tp_, dx, comm::Reduce::sum);
}

void ColumnParallelLinear::backward_weight(Exec& ex, const Tensor& dy, const Saved& saved, ops::Write write) const {
  add_weight_gradients(ex, dy, saved.x, weight_, write, beside_sum(tp_), bias_.grad);
}

void ColumnParallelLinear::backward_weight_without_bias(Exec& ex, const Tensor& dy, const Saved& saved,
                                                        ops::Write write) const {
  add_weight_gradients(ex, dy, saved.x, weight_, write, beside_sum(tp_));
}

comm::Pending RowParallelLinear::forward(Exec& ex, const Tensor& x, Saved& saved, const Part& part) const {
  saved.x = x;
  part.make(ex, saved.y, {x.dim(0), weight_.value.dim(0)}, x.dtype());
  const Tensor y = part.of(saved.y);
  ops::matmul(ex, {.a = part.of(x), .b = weight_.value, .c = y, .transpose_b = Transpose::yes});
  return comm::all_reduce(ex, tp_, y, comm::Reduce::sum);
}

void RowParallelLinear::backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const {
  ops::matmul(ex, {.a = dy, .b = weight_.value, .c = dx});
}

void RowParallelLinear::backward_input_gelu(Exec& ex, const Tensor& dy, const Tensor& z, const Tensor& dz,
                                            const Tensor& bias_grad) const {
  ops::matmul_gelu_backward(ex, {.dy = dy, .w = weight_.value, .z = z, .dz = dz, .bias_grad = bias_grad});
}

void RowParallelLinear::backward_weight(Exec& ex, const Tensor& dy, const Saved& saved, ops::Write write) const {
  add_weight_gradients(ex, dy, saved.x, weight_, write, ops::Beside::nothing, bias_.grad);
}

}  // namespace megalith::nn
