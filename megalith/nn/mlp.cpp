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

Mlp::Mlp(const std::string& name, const SublayerOptions& options, const TensorParallel& tp, ParamSet& params)
    : TensorParallelSublayer({tp, params.at(name + ".up.weight"), params.find(name + ".up.bias")},
                             {tp, params.at(name + ".down.weight"), params.find(name + ".down.bias")}),
      gelu_again_(options.recompute.again(RecomputeModule::gelu)),
      first_gemm_again_(options.recompute.again(RecomputeModule::mlp)) {}

void Mlp::first_gemm(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  first_.forward_gelu(ex, saved.last.x, saved.first, microbatch.sub_batch);
}

Mlp::FirstGrad Mlp::backward_to_first(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  const Tensor& z = saved.first.y;
  if (first_gemm_again_) {
    first_gemm_again(ex, microbatch, saved);
  } else if (gelu_again_) {
    saved.last.x = ex.tensor_like(z);
    ops::gelu(ex, {.z = z, .y = saved.last.x});
  }
  const Tensor dz = ex.tensor_like(z);
  saved.entered.d_out.messages.wait(ex);
  last_.backward_input_gelu(ex, saved.entered.d_out.x, z, dz, first_.bias_grad());
  last_.backward_weight_at(WeightGradTime::at_once, ex, saved.entered, saved.last, microbatch.weight_grads);
  return {dz, BiasGrad::added};
}

}  // namespace megalith::nn
