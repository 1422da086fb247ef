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
  const SubBatch& sub_batch = microbatch.sub_batch;
  if (!has_fp8_operands()) return first_.forward_swiglu(ex, x, {saved.gate_up, saved.activated}, sub_batch);
  first_.forward(ex, x, saved.gate_up, sub_batch, pass.operands);
  activate(ex, ops::Activation::swiglu, saved.gate_up, activation_pass(microbatch, pass), saved.activated,
           saved.last_operands_of(sub_batch));
}

void GatedMlp::last_input_grad(Exec& ex, const Microbatch& microbatch, GatedMlpState& saved) const {
  if (recomputes_first_gemm_) recompute_first_gemm(ex, microbatch, saved);
  const Tensor& gate_up = saved.gate_up;
  const Shape units{gate_up.dim(0), gate_up.dim(1) / 2};
  const bool makes_activated = recomputes_activation_ && !recomputes_first_gemm_;
  if (has_fp8_operands()) {
    if (makes_activated)
      activate(ex, ops::Activation::swiglu, gate_up, activation_pass(microbatch, {.in_backward = true}),
               saved.activated, saved.last_operands_of(microbatch.sub_batch));
    saved.d_activated = ex.tensor(units, gate_up.dtype());
    return last_backward_input(ex, saved, saved.d_activated);
  }
  if (makes_activated) saved.activated = ex.tensor(units, gate_up.dtype());
  saved.d_first = ex.tensor_like(gate_up);
  saved.gathered.d_out.messages.wait(ex);
  last_.backward_input_swiglu(ex, saved.gathered.d_out.x,
                              {.z = gate_up, .dz = saved.d_first, .x = makes_activated ? saved.activated : Tensor()});
}

void GatedMlp::local_work_grad(Exec& ex, const Microbatch&, GatedMlpState& saved) const {
  if (has_fp8_operands())
    activate_backward(ex, {.z = saved.gate_up, .dy = saved.d_activated, .activation = ops::Activation::swiglu}, first_,
                      saved.d_first, saved.d_first_operands);
}

}  // namespace megalith::nn
