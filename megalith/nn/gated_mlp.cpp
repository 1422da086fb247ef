#include "megalith/nn/gated_mlp.h"

#include "megalith/ops/swiglu.h"

namespace megalith::nn {

GatedMlp::GatedMlp(const std::string& name, const SublayerOptions& options, const TensorParallel& tp, ParamSet& params)
    : TensorParallelSublayer({tp, params.at(name + ".up.weight"), params.find(name + ".up.bias")},
                             {tp, params.at(name + ".down.weight"), params.find(name + ".down.bias")}),
      activation_again_(options.recompute.again(RecomputeModule::gelu)),
      first_gemm_again_(options.recompute.again(RecomputeModule::mlp)) {}

void GatedMlp::first_gemm(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  first_.forward(ex, saved.first, microbatch.sub_batch);
  activate(ex, microbatch, saved);
}

void GatedMlp::activate(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  const SubBatch& sub_batch = microbatch.sub_batch;
  const Tensor& gate_up = saved.first.y;
  sub_batch.make(ex, saved.last.x, {gate_up.dim(0), gate_up.dim(1) / 2}, gate_up.dtype());
  ops::swiglu(ex, {.gate_up = sub_batch.of(gate_up), .y = sub_batch.of(saved.last.x)});
}

GatedMlp::FirstGrad GatedMlp::backward_to_first(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  if (first_gemm_again_)
    first_gemm_again(ex, microbatch, saved);
  else if (activation_again_)
    activate(ex, microbatch, saved);
  const Tensor d_activated = ex.tensor_like(saved.last.x);
  saved.entered.d_out.messages.wait(ex);
  last_.backward_input(ex, saved.entered.d_out.x, d_activated);
  last_.backward_weight_at(WeightGradTime::at_once, ex, saved.entered, saved.last, microbatch.weight_grads);
  const Tensor d_gate_up = ex.tensor_like(saved.first.y);
  ops::swiglu_backward(ex, {.gate_up = saved.first.y, .dy = d_activated, .dgate_up = d_gate_up});
  return {d_gate_up};
}

}  // namespace megalith::nn
