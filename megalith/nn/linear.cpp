#include "megalith/nn/linear.h"

#include "megalith/ops/elementwise.h"

namespace megalith::nn {
namespace {

using ops::Transpose;
using ops::Write;

// A product leaves room for communication that may still be under way: the weight gradient of a column-parallel layer
// for the sum of its input's gradient; where rows enter by messages, both products of a row-parallel layer's backward
// pass, for its region's input and for what enters the next one; and in a part's forward pass those that follow what
// the other part has sent.
ops::Beside beside(bool communication) { return communication ? ops::Beside::communication : ops::Beside::nothing; }

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

InFlight ColumnParallelLinear::enter(Exec& ex, const Tensor& x, Saved& saved, const Part& part) const {
  saved.x = x;
  TensorParallel::Entered entered = tp_.enter(ex, part.of(x), part);
  saved.entered[static_cast<std::size_t>(part.index)] = entered.x;
  return std::move(entered.messages);
}

Tensor ColumnParallelLinear::forward(Exec& ex, Saved& saved, const Part& part) const {
  const Tensor& x = saved.entered[static_cast<std::size_t>(part.index)];
  part.make(ex, saved.y, {x.dim(0) * part.count, weight_.value.dim(0)}, x.dtype());
  ops::matmul(ex, {.a = x,
                   .b = weight_.value,
                   .bias = bias_.value,
                   .c = part.of(saved.y),
                   .transpose_b = Transpose::yes,
                   .beside = beside(part.count > 1)});
  return saved.y;
}

void ColumnParallelLinear::forward_gelu(Exec& ex, Tensor& gelu_y, Saved& saved, const Part& part) const {
  const Tensor& x = saved.entered[static_cast<std::size_t>(part.index)];
  part.make(ex, saved.y, {x.dim(0) * part.count, weight_.value.dim(0)}, x.dtype());
  part.make(ex, gelu_y, saved.y.shape(), x.dtype());
  ops::matmul_gelu(ex, {.x = x,
                        .w = weight_.value,
                        .bias = bias_.value,
                        .z = part.of(saved.y),
                        .y = part.of(gelu_y),
                        .beside = beside(part.count > 1)});
}

InFlight ColumnParallelLinear::backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const {
  const Tensor sums = tp_.before_leaving(ex, dx);
  ops::matmul(ex, {.a = dy, .b = weight_.value, .c = sums});
  return tp_.leave(ex, sums, dx, kWholeMicrobatch);
}

void ColumnParallelLinear::backward_weight(Exec& ex, const Tensor& dy, const Tensor& x, ops::Write write) const {
  add_weight_gradients(ex, dy, x, weight_, write, beside(sums_input_grads()), bias_.grad);
}

void ColumnParallelLinear::backward_weight_without_bias(Exec& ex, const Tensor& dy, const Tensor& x,
                                                        ops::Write write) const {
  add_weight_gradients(ex, dy, x, weight_, write, beside(sums_input_grads()));
}

InFlight RowParallelLinear::forward(Exec& ex, const Tensor& x, Saved& saved, const Part& part) const {
  saved.x = x;
  part.make(ex, saved.y, {tp_.rows_outside(x.dim(0)), weight_.value.dim(0)}, x.dtype());
  const Tensor y = part.of(saved.y), sums = tp_.before_leaving(ex, y);
  ops::matmul(ex, {.a = part.of(x),
                   .b = weight_.value,
                   .c = sums,
                   .transpose_b = Transpose::yes,
                   .beside = beside(part.count > 1 && tp_.shares_rows())});
  return tp_.leave(ex, sums, y, part);
}

void RowParallelLinear::backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const {
  ops::matmul(ex, {.a = dy, .b = weight_.value, .c = dx, .beside = beside(tp_.shares_rows())});
}

void RowParallelLinear::backward_input_gelu(Exec& ex, const Tensor& dy, const Tensor& z, const Tensor& dz,
                                            const Tensor& bias_grad) const {
  ops::matmul_gelu_backward(
      ex,
      {.dy = dy, .w = weight_.value, .z = z, .dz = dz, .bias_grad = bias_grad, .beside = beside(tp_.shares_rows())});
}

WeightGradTime RowParallelLinear::weight_grad_time() const {
  if (tp_.group().size() == 1) return WeightGradTime::at_once;
  return tp_.shares_rows() ? WeightGradTime::beside_entering : WeightGradTime::beside_sum;
}

void RowParallelLinear::backward_weight_at(WeightGradTime now, Exec& ex, const EnteredBackward& entered,
                                           const Saved& saved, ops::Write write) const {
  if (now != weight_grad_time()) return;
  add_weight_gradients(ex, entered.d_out.x, saved.x, weight_, write, beside(now == WeightGradTime::beside_entering),
                       entered.has_out_bias_grad ? Tensor() : bias_.grad);
}

}  // namespace megalith::nn
