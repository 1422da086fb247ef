#include "megalith/nn/linear.h"

#include "megalith/ops/elementwise.h"
#include "megalith/ops/swiglu.h"

namespace megalith::nn {
namespace {

using ops::Transpose;
using ops::Write;

// GEMMs leave an SM margin for communication that may be in flight:
//  - the weight gradient of a column-parallel layer, for the sum of its input's gradient;
//  - with sequence parallelism both GEMMs of a row-parallel layer's backward pass, for the gathers of the inputs of its
//    region and of the next one;
//  - in the forward pass of a sub-microbatch, those that follow what the other one has sent.
ops::SmMargin margin_for(bool communication) {
  return communication ? ops::SmMargin::communication : ops::SmMargin::none;
}

ops::Matmul weight_gradients(const Tensor& dy, const Tensor& x, const Param& weight, Write write,
                             ops::SmMargin sm_margin, const Tensor& bias_grad) {
  return {.a = dy,
          .b = x,
          .c = as_matrix(weight.grad),
          .bias_grad = bias_grad ? bias_grad.reshaped({bias_grad.numel()}) : Tensor(),
          .transpose_a = Transpose::yes,
          .write = write_of(weight, write),
          .sm_margin = sm_margin};
}

}  // namespace

void ColumnParallelLinear::forward(Exec& ex, const Tensor& x, Tensor& y, const SubBatch& sub_batch,
                                   RowOperands operands) const {
  const Tensor weight = as_matrix(weight_.value);
  sub_batch.make(ex, y, {x.dim(0) * sub_batch.count, weight.dim(0)}, x.dtype());
  multiply_rows(ex, formats_, std::move(operands),
                {.a = x,
                 .b = weight,
                 .bias = bias(),
                 .c = sub_batch.of(y),
                 .transpose_b = Transpose::yes,
                 .sm_margin = margin_for(sub_batch.count > 1)});
}

void ColumnParallelLinear::forward_gelu(Exec& ex, const Tensor& x, const GeluResults& results,
                                        const SubBatch& sub_batch) const {
  const auto& [z, y, form] = results;
  if (bias_ == nullptr) {
    forward(ex, x, z, sub_batch);
    sub_batch.make(ex, y, z.shape(), z.dtype());
    return ops::gelu(ex, {.z = sub_batch.of(z), .y = sub_batch.of(y), .form = form});
  }
  sub_batch.make(ex, z, {x.dim(0) * sub_batch.count, weight_.value.dim(0)}, x.dtype());
  sub_batch.make(ex, y, z.shape(), x.dtype());
  ops::matmul_gelu(ex, {.x = x,
                        .w = weight_.value,
                        .bias = bias(),
                        .z = sub_batch.of(z),
                        .y = sub_batch.of(y),
                        .form = form,
                        .sm_margin = margin_for(sub_batch.count > 1)});
}

void ColumnParallelLinear::forward_swiglu(Exec& ex, const Tensor& x, const SwigluResults& results,
                                          const SubBatch& sub_batch) const {
  const auto& [z, y] = results;
  const Tensor weight = as_matrix(weight_.value);
  const Index rows = x.dim(0) * sub_batch.count, columns = weight.dim(0);
  sub_batch.make(ex, y, {rows, columns / 2}, x.dtype());
  if (bias_ != nullptr) {
    forward(ex, x, z, sub_batch);
    return ops::swiglu(ex, {.gate_up = sub_batch.of(z), .y = sub_batch.of(y)});
  }
  sub_batch.make(ex, z, {rows, columns}, x.dtype());
  ops::matmul_swiglu(
      ex,
      {.x = x, .w = weight, .z = sub_batch.of(z), .y = sub_batch.of(y), .sm_margin = margin_for(sub_batch.count > 1)});
}

InFlight ColumnParallelLinear::backward_input(Exec& ex, const Tensor& dy, const Tensor& dx,
                                              RowOperands operands) const {
  const Tensor sums = tp_.region_sums(ex, dx);
  multiply_rows(ex, formats_, std::move(operands), {.a = dy, .b = as_matrix(weight_.value), .c = sums});
  return tp_.from_region(ex, sums, dx, kWholeMicrobatch);
}

void ColumnParallelLinear::backward_weight(Exec& ex, const Tensor& dy, const Tensor& x, ops::Write write, BiasGrad bias,
                                           const ops::Operand& dy_turned, const ops::Operand& x_turned) const {
  add_weight_gradient(ex, formats_.weight_grad,
                      weight_gradients(dy, x, weight_, write, margin_for(sums_input_grads()),
                                       bias == BiasGrad::to_add ? bias_grad() : Tensor()),
                      dy_turned, x_turned);
}

InFlight RowParallelLinear::forward(Exec& ex, const Tensor& x, Tensor& y, const SubBatch& sub_batch,
                                    RowOperands operands) const {
  const Index tokens = (x ? x : operands.straight.values).dim(0) * sub_batch.count;
  sub_batch.make(ex, y, {tp_.rows_outside(tokens), weight_.value.dim(0)}, weight_.value.dtype());
  const Tensor rows = sub_batch.of(y), sums = tp_.region_sums(ex, rows);
  multiply_rows(ex, formats_, std::move(operands),
                {.a = x,
                 .b = weight_.value,
                 .c = sums,
                 .transpose_b = Transpose::yes,
                 .sm_margin = margin_for(sub_batch.count > 1 && tp_.is_sequence_parallel())});
  return tp_.from_region(ex, sums, rows, sub_batch);
}

void RowParallelLinear::backward_input(Exec& ex, const Tensor& dy, const Tensor& dx, RowOperands operands) const {
  multiply_rows(ex, formats_, std::move(operands),
                {.a = dy, .b = weight_.value, .c = dx, .sm_margin = margin_for(tp_.is_sequence_parallel())});
}

void RowParallelLinear::backward_input_gelu(Exec& ex, const Tensor& dy, const GeluGradient& gelu,
                                            const Tensor& bias_grad) const {
  const auto& [z, dz, form] = gelu;
  if (!bias_grad) {
    backward_input(ex, dy, dz);
    return ops::gelu_backward(ex, {.z = z, .dy = dz, .dz = dz, .form = form});
  }
  ops::matmul_gelu_backward(ex, {.dy = dy,
                                 .w = weight_.value,
                                 .z = z,
                                 .dz = dz,
                                 .bias_grad = bias_grad,
                                 .form = form,
                                 .sm_margin = margin_for(tp_.is_sequence_parallel())});
}

void RowParallelLinear::backward_input_swiglu(Exec& ex, const Tensor& dy, const SwigluGradient& swiglu) const {
  ops::matmul_swiglu_backward(ex, {.dy = dy,
                                   .w = weight_.value,
                                   .z = swiglu.z,
                                   .dz = swiglu.dz,
                                   .y = swiglu.x,
                                   .sm_margin = margin_for(tp_.is_sequence_parallel())});
}

void RowParallelLinear::backward_weight(Exec& ex, const BackwardInRegion& gathered, const Tensor& x, ops::Write write,
                                        const ops::Operand& dy_turned, const ops::Operand& x_turned) const {
  add_weight_gradient(ex, formats_.weight_grad,
                      weight_gradients(gathered.d_out.x, x, weight_, write, margin_for(tp_.is_sequence_parallel()),
                                       gathered.has_out_bias_grad || bias_ == nullptr ? Tensor() : bias_->grad),
                      dy_turned, x_turned);
}

}  // namespace megalith::nn
