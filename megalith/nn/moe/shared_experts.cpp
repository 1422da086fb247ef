#include "megalith/nn/moe/shared_experts.h"

#include "megalith/nn/gated_mlp.h"
#include "megalith/nn/mlp.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/gated_sum.h"
#include "megalith/ops/init.h"

namespace megalith::nn {

void SharedExperts::declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec,
                            const StreamSpec& stream, const TensorParallel& tp) {
  Mlp::declare(specs, name, {spec.config.shared_ffn_hidden_size, spec.activation, Biases::none}, stream, tp.group());
  if (!spec.config.shared_gate) return;
  const Shape shape = {1, stream.hidden_size};
  ParamSpec gate{TensorSlice::whole(name + ".gate.weight", shape), shape, Init::normal, stream.init_std};
  gate.placement = tp.outside_placement();
  gate.first_grad = FirstGrad::overwritten;
  specs.push_back(std::move(gate));
}

SharedExperts::SharedExperts(const std::string& name, const MoeSpec& spec, const SublayerOptions& options,
                             const TensorParallel& tp, ParamSet& params)
    : gate_(params.find(name + ".gate.weight")) {
  if (spec.activation == Activation::swiglu)
    mlp_ = std::make_unique<GatedMlp>(name, options, tp, params);
  else
    mlp_ = std::make_unique<Mlp>(name, options, tp, params);
}

InFlight SharedExperts::gather(Exec& ex, const Microbatch& microbatch, const Tensor& x, Saved& saved) const {
  saved.x = x;
  return mlp_->forward(ex, microbatch, 0, x, *saved.mlp);
}

void SharedExperts::forward(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  for (int stage = 1; stage < mlp_->num_forward_stages(); ++stage)
    mlp_->forward(ex, microbatch, stage, saved.x, *saved.mlp).wait(ex);
  if (gate_ == nullptr) return;
  saved.gate = ex.tensor({saved.x.dim(0), 1}, statistics_dtype(saved.x.dtype()));
  ops::matmul(ex, {.a = saved.x, .b = gate_->value, .c = saved.gate, .transpose_b = ops::Transpose::yes});
}

void SharedExperts::add_to(Exec& ex, const Tensor& routed, const Tensor& y, const Saved& saved) const {
  ops::gated_sum(ex, {.routed = routed, .shared = mlp_->output(*saved.mlp), .gate = saved.gate, .y = y});
}

void SharedExperts::backward(Exec& ex, const Microbatch& microbatch, const Tensor& dy, const Tensor& dx,
                             Saved& saved) const {
  saved.d_shared = dy;
  if (gate_ != nullptr) {
    saved.d_shared = ex.tensor(dy.shape(), dy.dtype());
    saved.d_gate = ex.tensor(saved.gate.shape(), saved.gate.dtype());
    ops::gated_sum_backward(ex, {.dy = dy,
                                 .shared = mlp_->output(*saved.mlp),
                                 .gate = saved.gate,
                                 .d_shared = saved.d_shared,
                                 .d_gate = saved.d_gate});
  }
  for (int stage = 0; stage < mlp_->num_backward_stages(); ++stage)
    mlp_->backward(ex, microbatch, stage, {{saved.d_shared, {}}, dx}, *saved.mlp);
  if (gate_ == nullptr) return;
  Tensor d_gate = saved.d_gate;
  if (d_gate.dtype() != saved.x.dtype()) {
    d_gate = ex.tensor(saved.d_gate.shape(), saved.x.dtype());
    ops::cast(ex, saved.d_gate, d_gate);
  }
  ops::matmul(ex, {.a = d_gate, .b = gate_->value, .c = dx, .write = ops::Write::accumulate});
  ops::matmul(ex, {.a = d_gate,
                   .b = saved.x,
                   .c = gate_->grad,
                   .transpose_a = ops::Transpose::yes,
                   .write = microbatch.weight_grads});
}

void SharedExperts::set_input(const Tensor& x, Saved& saved) const {
  saved.x = x;
  mlp_->set_input(x, *saved.mlp);
}

}  // namespace megalith::nn
