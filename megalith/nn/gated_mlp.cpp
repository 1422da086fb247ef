#include "megalith/nn/gated_mlp.h"

#include "megalith/ops/swiglu.h"

namespace megalith::nn {

GatedMlp::GatedMlp(const std::string& name, const SublayerOptions& options, const TensorParallel& tp, ParamSet& params)
    : TensorParallelSublayer({tp, params.at(name + ".up.weight"), params.find(name + ".up.bias"), options.gemms},
                             {tp, params.at(name + ".down.weight"), params.find(name + ".down.bias"), options.gemms},
                             recomputed_inputs_of_mlp(options.recompute)),
      recomputes_activation_(options.recompute.has(RecomputeModule::gelu)),
      recomputes_first_gemm_(options.recompute.has(RecomputeModule::mlp)) {}

void GatedMlp::first_gemm(Exec& ex, const Microbatch& microbatch, const Tensor& x, GatedMlpState& saved,
                          const FirstGemm& pass) const {
  first_.forward(ex, x, saved.gate_up, microbatch.sub_batch, pass.operands);
  activate_gate(ex, microbatch, saved, pass);
}

void GatedMlp::activate_gate(Exec& ex, const Microbatch& microbatch, GatedMlpState& saved,
                             const FirstGemm& pass) const {
  const SubBatch& sub_batch = microbatch.sub_batch;
  const Tensor& gate_up = saved.gate_up;
  if (has_fp8_operands())
    return activate(ex, ops::Activation::swiglu, gate_up, activation_pass(microbatch, pass), saved.activated,
                    saved.last_operands_of(sub_batch));
  sub_batch.make(ex, saved.activated, {gate_up.dim(0), gate_up.dim(1) / 2}, gate_up.dtype());
  ops::swiglu(ex, {.gate_up = sub_batch.of(gate_up), .y = sub_batch.of(saved.activated)});
}

void GatedMlp::last_input_grad(Exec& ex, const Microbatch& microbatch, GatedMlpState& saved) const {
  if (recomputes_first_gemm_)
    recompute_first_gemm(ex, microbatch, saved);
  else if (recomputes_activation_)
    activate_gate(ex, microbatch, saved, {.in_backward = true});
  saved.d_activated = ex.tensor({saved.gate_up.dim(0), saved.gate_up.dim(1) / 2}, saved.gate_up.dtype());
  last_backward_input(ex, saved, saved.d_activated);
}

void GatedMlp::local_work_grad(Exec& ex, const Microbatch&, GatedMlpState& saved) const {
  if (has_fp8_operands())
    return activate_backward(ex, {.z = saved.gate_up, .dy = saved.d_activated, .activation = ops::Activation::swiglu},
                             first_, saved.d_first, saved.d_first_operands);
  saved.d_first = ex.tensor_like(saved.gate_up);
  ops::swiglu_backward(ex, {.gate_up = saved.gate_up, .dy = saved.d_activated, .dgate_up = saved.d_first});
}

}  // namespace megalith::nn
