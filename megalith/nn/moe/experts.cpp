#include "megalith/nn/moe/experts.h"

#include "megalith/nn/param_specs.h"
#include "megalith/ops/grouped_matmul.h"

namespace megalith::nn {
namespace {

/// [E, ..., in] -> [E, out, in]
Tensor as_matrices(const Tensor& weight) {
  const Index experts = weight.dim(0), in = weight.dim(weight.shape().rank() - 1);
  return weight.reshaped({experts, weight.numel() / (experts * in), in});
}

/// Experts [first, first + count) and, along `axis` of the global tensor, this rank's slice.
ParamSpec expert_weight(std::string name, const Shape& shape, int axis, const ExpertParallel& experts,
                        double init_std) {
  const Index count = shard(shape[0], experts.ep(), name + " experts");
  const Index units = shard(shape[axis], experts.etp(), name + " units");
  TensorSlice slice = TensorSlice::whole(std::move(name), shape);
  slice.local.set(0, count);
  slice.local.set(axis, units);
  slice.offset[0] = count * experts.ep().rank();
  slice.offset[static_cast<std::size_t>(axis)] = units * experts.etp().rank();
  ParamSpec spec;
  spec.held = slice.local;
  spec.slice = std::move(slice);
  spec.init = Init::normal;
  spec.init_std = init_std;
  spec.placement.grid = grid::GridKind::expert;
  spec.first_grad = FirstGrad::overwritten;
  spec.grad_squares = ops::weight_grad_squares(as_matrices(Tensor(nullptr, spec.held, DType::f32)).shape());
  return spec;
}

}  // namespace

void Experts::declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec,
                      const StreamSpec& stream, const ExpertParallel& experts) {
  const Index e = spec.config.num_experts, f = spec.config.ffn_hidden_size, h = stream.hidden_size;
  const bool gated = spec.activation == Activation::swiglu;
  specs.push_back(
      expert_weight(name + ".up.weight", gated ? Shape{e, f, 2, h} : Shape{e, f, h}, 1, experts, stream.init_std));
  specs.push_back(expert_weight(name + ".down.weight", {e, h, f}, 2, experts, stream.residual_init_std));
}

Experts::Experts(const std::string& name, const SublayerOptions& options, ParamSet& params)
    : recomputes_first_gemm_(options.recompute.has(RecomputeModule::mlp)),
      up_(params.at(name + ".up.weight")),
      down_(params.at(name + ".down.weight")) {}

Tensor Experts::forward(Exec& ex, const ExpertRows& in, Saved& saved) const {
  const Tensor up = as_matrices(up_.value), down = as_matrices(down_.value);
  const Index rows = in.rows.dim(0);
  const DType dtype = in.rows.dtype();
  saved.groups = in.groups;
  saved.up = ex.tensor({rows, up.dim(1)}, dtype);
  const Tensor h = ex.tensor({rows, down.dim(2)}, dtype), y = ex.tensor({rows, down.dim(1)}, dtype);
  ops::grouped_matmul_activated(ex, {.x = in.rows, .w = up, .z = saved.up, .h = h, .groups = in.groups});
  ops::grouped_matmul(ex, {.x = h, .w = down, .y = y, .groups = in.groups});
  return y;
}

RowGrads Experts::backward(Exec& ex, const Tensor& in, const RowGrads& dy, ops::Write weight_grads,
                           Saved& saved) const {
  const Tensor up = as_matrices(up_.value), down = as_matrices(down_.value);
  if (recomputes_first_gemm_) {
    saved.up = ex.tensor({in.dim(0), up.dim(1)}, in.dtype());
    ops::grouped_matmul(ex, {.x = in, .w = up, .y = saved.up, .groups = saved.groups});
  }
  const Tensor &z = saved.up, &d_up = saved.up;  // in its place
  const Tensor weighted = ex.tensor({in.dim(0), down.dim(2)}, in.dtype());
  const RowGrads dx{ex.tensor_like(in), ex.tensor_like(dy.weights)};
  ops::grouped_matmul_activated_input_grad(ex, {.dy = dy.rows,
                                                .w = down,
                                                .z = z,
                                                .p = dy.weights,
                                                .dz = d_up,
                                                .ph = weighted,
                                                .dp = dx.weights,
                                                .groups = saved.groups});
  ops::grouped_matmul_weight_grad(ex, {.dy = dy.rows,
                                       .x = weighted,
                                       .dw = as_matrices(down_.grad),
                                       .groups = saved.groups,
                                       .write = weight_grads,
                                       .squares = down_.grad_squares});
  ops::grouped_matmul_input_grad(ex, {.dy = d_up, .w = up, .dx = dx.rows, .groups = saved.groups});
  ops::grouped_matmul_weight_grad(ex, {.dy = d_up,
                                       .x = in,
                                       .dw = as_matrices(up_.grad),
                                       .groups = saved.groups,
                                       .write = weight_grads,
                                       .squares = up_.grad_squares});
  return dx;
}

}  // namespace megalith::nn
