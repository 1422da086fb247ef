#include "megalith/nn/moe/experts.h"

#include <numeric>

#include "megalith/nn/param_specs.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/grouped_matmul.h"
#include "megalith/ops/swiglu.h"

namespace megalith::nn {
namespace {

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
  return spec;
}

/// [E, ..., in] -> [E, out, in]
Tensor as_matrices(const Tensor& weight) {
  const Index experts = weight.dim(0), in = weight.dim(weight.shape().rank() - 1);
  return weight.reshaped({experts, weight.numel() / (experts * in), in});
}

/// The rows that are used: all of them while a pass is recorded.
Tensor used(Exec& ex, const Tensor& rows, const ExpertRows& of) {
  if (ex.recording()) return rows;
  return rows.rows(0, std::accumulate(of.sizes.begin(), of.sizes.end(), Index{0}));
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

Experts::Experts(const std::string& name, const MoeSpec& spec, const SublayerOptions& options, ParamSet& params)
    : activation_(spec.activation),
      recomputes_activation_(options.recompute.has(RecomputeModule::gelu)),
      recomputes_first_gemm_(options.recompute.has(RecomputeModule::mlp)),
      up_(params.at(name + ".up.weight")),
      down_(params.at(name + ".down.weight")) {}

void Experts::first_gemm(Exec& ex, Saved& saved) const {
  const Tensor w = as_matrices(up_.value);
  saved.up = ex.tensor({saved.in.rows.dim(0), w.dim(1)}, saved.in.rows.dtype());
  ops::grouped_matmul(ex, {.x = saved.in.rows, .w = w, .y = saved.up, .sizes = {saved.in.sizes}});
}

void Experts::activate(Exec& ex, Saved& saved) const {
  const Index units = activation_ == Activation::swiglu ? saved.up.dim(1) / 2 : saved.up.dim(1);
  saved.activated = ex.tensor({saved.up.dim(0), units}, saved.up.dtype());
  const Tensor up = used(ex, saved.up, saved.in), y = used(ex, saved.activated, saved.in);
  if (activation_ == Activation::swiglu)
    ops::swiglu(ex, {.gate_up = up, .y = y});
  else
    ops::gelu(ex, {.z = up, .y = y});
}

Tensor Experts::forward(Exec& ex, Saved& saved) const {
  first_gemm(ex, saved);
  activate(ex, saved);
  const Tensor w = as_matrices(down_.value);
  const Tensor y = ex.tensor({saved.in.rows.dim(0), w.dim(1)}, saved.in.rows.dtype());
  ops::grouped_matmul(ex, {.x = saved.activated, .w = w, .y = y, .sizes = {saved.in.sizes}});
  return y;
}

void Experts::activate_backward(Exec& ex, const Saved& saved, const Tensor& d_activated, const Tensor& d_up) const {
  const Tensor up = used(ex, saved.up, saved.in), dy = used(ex, d_activated, saved.in);
  if (activation_ == Activation::swiglu)
    ops::swiglu_backward(ex, {.gate_up = up, .dy = dy, .dgate_up = used(ex, d_up, saved.in)});
  else
    ops::gelu_backward(ex, {.z = up, .dy = dy, .dz = used(ex, d_up, saved.in)});
}

Tensor Experts::backward(Exec& ex, const Tensor& dy, ops::Write weight_grads, Saved& saved) const {
  if (recomputes_first_gemm_) first_gemm(ex, saved);
  if (recomputes_first_gemm_ || recomputes_activation_) activate(ex, saved);
  const ops::GroupSizes sizes{saved.in.sizes};
  const Tensor d_activated = ex.tensor_like(saved.activated);
  ops::grouped_matmul_input_grad(ex, {.dy = dy, .w = as_matrices(down_.value), .dx = d_activated, .sizes = sizes});
  ops::grouped_matmul_weight_grad(
      ex, {.dy = dy, .x = saved.activated, .dw = as_matrices(down_.grad), .sizes = sizes, .write = weight_grads});
  const Tensor d_up = ex.tensor_like(saved.up);
  activate_backward(ex, saved, d_activated, d_up);
  ops::grouped_matmul_weight_grad(
      ex, {.dy = d_up, .x = saved.in.rows, .dw = as_matrices(up_.grad), .sizes = sizes, .write = weight_grads});
  const Tensor dx = ex.tensor_like(saved.in.rows);
  ops::grouped_matmul_input_grad(ex, {.dy = d_up, .w = as_matrices(up_.value), .dx = dx, .sizes = sizes});
  return dx;
}

}  // namespace megalith::nn
