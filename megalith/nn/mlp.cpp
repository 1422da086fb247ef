#include "megalith/nn/mlp.h"

#include "megalith/nn/param_specs.h"
#include "megalith/ops/elementwise.h"

namespace megalith::nn {

void Mlp::declare(std::vector<ParamSpec>& specs, const std::string& name, const MlpSpec& spec, const StreamSpec& stream,
                  const comm::Group& tp) {
  const Index h = stream.hidden_size, f = spec.ffn_hidden_size;
  const bool is_gated = spec.activation == Activation::swiglu;
  specs.push_back(units_split(name + ".up.weight", is_gated ? Shape{f, 2, h} : Shape{f, h}, tp, stream.init_std));
  if (spec.biases == Biases::all)
    specs.push_back(vector_split(name + ".up.bias", is_gated ? Shape{f, 2} : Shape{f}, tp));
  specs.push_back(columns_split(name + ".down.weight", h, f, tp, stream.residual_init_std));
  if (spec.biases == Biases::all) specs.push_back(replicated(name + ".down.bias", {h}, tp, Init::zeros));
}

Mlp::Mlp(const std::string& name, ops::GeluForm gelu, const SublayerOptions& options, const TensorParallel& tp,
         ParamSet& params)
    : TensorParallelSublayer({tp, params.at(name + ".up.weight"), params.find(name + ".up.bias"), options.gemms},
                             {tp, params.at(name + ".down.weight"), params.find(name + ".down.bias"), options.gemms},
                             recomputed_inputs_of_mlp(options.recompute)),
      gelu_(gelu),
      recomputes_gelu_(options.recompute.has(RecomputeModule::gelu)),
      recomputes_first_gemm_(options.recompute.has(RecomputeModule::mlp)) {}

void Mlp::first_gemm(Exec& ex, const Microbatch& microbatch, const Tensor& x, MlpState& saved,
                     const FirstGemm& pass) const {
  const SubBatch& sub_batch = microbatch.sub_batch;
  if (!has_fp8_operands()) return first_.forward_gelu(ex, x, {saved.up, saved.activated, gelu_}, sub_batch);
  first_.forward(ex, x, saved.up, sub_batch, pass.operands);
  activate(ex, activation(), saved.up, activation_pass(microbatch, pass), saved.activated,
           saved.last_operands_of(sub_batch));
}

void Mlp::last_input_grad(Exec& ex, const Microbatch& microbatch, MlpState& saved) const {
  if (recomputes_first_gemm_) {
    recompute_first_gemm(ex, microbatch, saved);
  } else if (recomputes_gelu_ && has_fp8_operands()) {
    activate(ex, activation(), saved.up, activation_pass(microbatch, {.in_backward = true}), saved.activated,
             saved.last_operands_of(microbatch.sub_batch));
  } else if (recomputes_gelu_) {
    saved.activated = ex.tensor_like(saved.up);
    ops::gelu(ex, {.z = saved.up, .y = saved.activated, .form = gelu_});
  }
  if (has_fp8_operands()) {
    saved.d_activated = ex.tensor_like(saved.up);
    return last_backward_input(ex, saved, saved.d_activated);
  }
  saved.d_first = ex.tensor_like(saved.up);
  saved.gathered.d_out.messages.wait(ex);
  last_.backward_input_gelu(ex, saved.gathered.d_out.x, {saved.up, saved.d_first, gelu_}, first_.bias_grad());
}

void Mlp::local_work_grad(Exec& ex, const Microbatch&, MlpState& saved) const {
  if (has_fp8_operands())
    activate_backward(ex, {.z = saved.up, .dy = saved.d_activated, .activation = activation()}, first_, saved.d_first,
                      saved.d_first_operands);
}

}  // namespace megalith::nn
