#include "megalith/nn/moe/shared_experts.h"

#include "megalith/nn/gated_mlp.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/moe/wide_logits.h"
#include "megalith/ops/gated_sum.h"

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
    mlp_ = std::make_unique<Mlp>(name, ops::GeluForm::tanh, options, tp, params);
  backward_stages_ = backward_stages(mlp_->backward_stages(), {.reduces = tp.group().size() > 1});
}

InFlight SharedExperts::gather(Exec& ex, const Microbatch& microbatch, const Tensor& x, Saved& saved) const {
  saved.x = x;
  return mlp_->forward(ex, microbatch, mlp_->forward_stages().front(), x, *saved.mlp);
}

void SharedExperts::forward(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  for (const ForwardStage stage : mlp_->forward_stages().subspan(1))
    mlp_->forward(ex, microbatch, stage, saved.x, *saved.mlp).wait(ex);
  if (gate_ != nullptr) saved.gate = wide_logits(ex, saved.x, *gate_);
}

void SharedExperts::add_to(Exec& ex, const Tensor& routed, const Tensor& y, const Saved& saved) const {
  ops::gated_sum(ex, {.routed = routed, .shared = mlp_->output(*saved.mlp), .gate = saved.gate, .y = y});
}

void SharedExperts::backward(Exec& ex, const Microbatch& microbatch, const Tensor& dy, const Tensor& dx,
                             Saved& saved) const {
  saved.d_shared = dy;
  if (gate_ != nullptr) {
    saved.d_shared = ex.tensor_like(dy);
    saved.d_gate = ex.tensor_like(saved.gate);
    ops::gated_sum_backward(ex, {.dy = dy,
                                 .shared = mlp_->output(*saved.mlp),
                                 .gate = saved.gate,
                                 .d_shared = saved.d_shared,
                                 .d_gate = saved.d_gate});
  }
  InFlight dx_sums;
  for (const BackwardStage stage : backward_stages_) {
    InFlight message = mlp_->backward(ex, microbatch, stage, {{saved.d_shared, {}}, dx}, *saved.mlp);
    if (stage == BackwardStage::first_input_grad) dx_sums = std::move(message);
  }
  dx_sums.wait(ex);
  if (gate_ != nullptr) wide_logits_backward(ex, {saved.d_gate, saved.x, dx, microbatch.weight_grads}, *gate_);
}

void SharedExperts::set_input(const Tensor& x, Saved& saved) const {
  saved.x = x;
  mlp_->set_input(x, *saved.mlp);
}

}  // namespace megalith::nn
