#include "megalith/nn/linear.h"

#include "megalith/ops/elementwise.h"
#include "megalith/ops/matmul.h"

namespace megalith::nn {
namespace {

using ops::Transpose;
using ops::Write;

Tensor times_transposed(Exec& ex, const Tensor& x, const Tensor& weight) {
  Tensor y = ex.tensor({x.dim(0), weight.dim(0)}, x.dtype());
  ops::matmul(ex, {.a = x, .b = weight, .c = y, .transpose_b = Transpose::yes});
  return y;
}

void add_weight_gradients(Exec& ex, const Tensor& dy, const Tensor& x, Param& weight, Param& bias) {
  ops::matmul(ex, {.a = dy, .b = x, .c = weight.grad, .transpose_a = Transpose::yes, .write = Write::accumulate});
  ops::bias_backward(ex, dy, bias.grad);
}

}  // namespace

Tensor ColumnParallelLinear::forward(Exec& ex, const Tensor& x, Saved& saved) const {
  saved.x = x;
  return times_transposed(ex, x, weight_.value);
}

comm::Pending ColumnParallelLinear::backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const {
  ops::matmul(ex, {.a = dy, .b = weight_.value, .c = dx});
  return comm::all_reduce(ex, tp_, dx, comm::Reduce::sum);
}

void ColumnParallelLinear::backward_weight(Exec& ex, const Tensor& dy, const Saved& saved) const {
  add_weight_gradients(ex, dy, saved.x, weight_, bias_);
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

void RowParallelLinear::backward_weight(Exec& ex, const Tensor& dy, const Saved& saved) const {
  add_weight_gradients(ex, dy, saved.x, weight_, bias_);
}

}  // namespace megalith::nn
