#include "megalith/nn/mlp.h"

#include "megalith/nn/param_specs.h"
#include "megalith/ops/elementwise.h"

namespace megalith::nn {

void Mlp::declare(std::vector<ParamSpec>& specs, const std::string& name, const MlpSpec& spec, const StreamSpec& stream,
                  const comm::Group& tp) {
  const Index h = stream.hidden_size, f = spec.ffn_hidden_size;
  specs.push_back(rows_split(name + ".up.weight", f, h, tp, stream.init_std));
  if (spec.biases == Biases::all) specs.push_back(vector_split(name + ".up.bias", {f}, tp));
  specs.push_back(columns_split(name + ".down.weight", h, f, tp, stream.residual_init_std));
  if (spec.biases == Biases::all) specs.push_back(replicated(name + ".down.bias", {h}, tp, Init::zeros));
}

Mlp::Mlp(const std::string& name, const SublayerOptions& options, const TensorParallel& tp, ParamSet& params)
    : TensorParallelSublayer({tp, params.at(name + ".up.weight"), params.find(name + ".up.bias")},
                             {tp, params.at(name + ".down.weight"), params.find(name + ".down.bias")}),
      gelu_again_(options.recompute.again(RecomputeModule::gelu)),
      first_gemm_again_(options.recompute.again(RecomputeModule::mlp)),
      sub_batches_(tp.sub_batches()) {}

void Mlp::first_gemm(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  first_.forward_gelu(ex, saved.last.x, saved.first, microbatch.sub_batch);
}

void Mlp::recompute(Exec& ex, const Microbatch& microbatch, const Tensor& x, Saved& saved) const {
  if (first_gemm_again_) {
    // In the sub-microbatches of the forward pass: a GEMM of other rows may have other bits.
    Microbatch again = microbatch;
    for (again.sub_batch = {0, sub_batches_}; again.sub_batch.index < sub_batches_; ++again.sub_batch.index) {
      saved.first.in_region[static_cast<std::size_t>(again.sub_batch.index)] = again.sub_batch.of(x);
      first_gemm(ex, again, saved);
    }
  } else if (gelu_again_) {
    saved.last.x = ex.tensor(saved.first.y.shape(), saved.first.y.dtype());
    ops::gelu(ex, {.z = saved.first.y, .y = saved.last.x});
  }
}

void Mlp::backward_through(Exec& ex, const Microbatch& microbatch, const Tensor& dx, Saved& saved) const {
  const ops::Write write = microbatch.weight_grads;
  BackwardInRegion& entered = saved.entered;
  if (first_gemm_again_) entered.x.messages.wait(ex);
  recompute(ex, microbatch, entered.x.x, saved);
  const Tensor dz = ex.tensor(saved.first.y.shape(), dx.dtype());
  entered.d_out.messages.wait(ex);
  last_.backward_input_gelu(ex, entered.d_out.x, saved.first.y, dz, first_.bias_grad());
  last_.backward_weight_at(WeightGradTime::at_once, ex, entered, saved.last, write);
  InFlight sums = first_.backward_input(ex, dz, dx);
  entered.x.messages.wait(ex);
  first_.backward_weight_without_bias(ex, dz, entered.x.x, write);  // the bias has its gradient from gelu's
  last_.backward_weight_at(WeightGradTime::beside_sum, ex, entered, saved.last, write);
  sums.wait(ex);
}

}  // namespace megalith::nn
