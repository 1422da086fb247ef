#include "megalith/nn/gated_mlp.h"

#include "megalith/ops/swiglu.h"

namespace megalith::nn {

GatedMlp::GatedMlp(const std::string& name, const SublayerOptions& options, const TensorParallel& tp, ParamSet& params)
    : TensorParallelSublayer({tp, params.at(name + ".up.weight"), params.find(name + ".up.bias"), options.gemms},
                             {tp, params.at(name + ".down.weight"), params.find(name + ".down.bias"), options.gemms}),
      recomputes_activation_(options.recompute.has(RecomputeModule::gelu)),
      recomputes_first_gemm_(options.recompute.has(RecomputeModule::mlp)) {}

void GatedMlp::first_gemm(Exec& ex, const Microbatch& microbatch, const Tensor& x, GatedMlpState& saved) const {
  first_.forward(ex, x, saved.gate_up, microbatch.sub_batch);
  activate(ex, microbatch, saved);
}

void GatedMlp::activate(Exec& ex, const Microbatch& microbatch, GatedMlpState& saved) const {
  const SubBatch& sub_batch = microbatch.sub_batch;
  const Tensor& gate_up = saved.gate_up;
  sub_batch.make(ex, saved.activated, {gate_up.dim(0), gate_up.dim(1) / 2}, gate_up.dtype());
  ops::swiglu(ex, {.gate_up = sub_batch.of(gate_up), .y = sub_batch.of(saved.activated)});
}

void GatedMlp::last_input_grad(Exec& ex, const Microbatch& microbatch, GatedMlpState& saved) const {
  if (recomputes_first_gemm_)
    recompute_first_gemm(ex, microbatch, saved);
  else if (recomputes_activation_)
    activate(ex, microbatch, saved);
  saved.d_activated = ex.tensor_like(saved.activated);
  saved.gathered.d_out.messages.wait(ex);
  last_.backward_input(ex, saved.gathered.d_out.x, saved.d_activated);
}

void GatedMlp::local_work_grad(Exec& ex, const Microbatch&, GatedMlpState& saved) const {
  saved.d_first = ex.tensor_like(saved.gate_up);
  ops::swiglu_backward(ex, {.gate_up = saved.gate_up, .dy = saved.d_activated, .dgate_up = saved.d_first});
}

}  // namespace megalith::nn
