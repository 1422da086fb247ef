#include "megalith/nn/gated_mlp.h"

#include "megalith/nn/param_specs.h"
#include "megalith/ops/swiglu.h"

namespace megalith::nn {

void GatedMlp::declare(std::vector<ParamSpec>& specs, const std::string& name, const MlpSpec& spec,
                       const StreamSpec& stream, const comm::Group& tp) {
  const Index h = stream.hidden_size, f = spec.ffn_hidden_size;
  const bool has_biases = spec.biases == Biases::all;
  specs.push_back(units_split(name + ".up.weight", {f, 2, h}, tp, stream.init_std));
  if (has_biases) specs.push_back(vector_split(name + ".up.bias", {f, 2}, tp));
  specs.push_back(columns_split(name + ".down.weight", h, f, tp, stream.residual_init_std));
  if (has_biases) specs.push_back(replicated(name + ".down.bias", {h}, tp, Init::zeros));
}

GatedMlp::GatedMlp(const std::string& name, const SublayerOptions& options, const TensorParallel& tp, ParamSet& params)
    : TensorParallelSublayer({tp, params.at(name + ".up.weight"), params.find(name + ".up.bias")},
                             {tp, params.at(name + ".down.weight"), params.find(name + ".down.bias")}),
      activation_again_(options.recompute.again(RecomputeModule::gelu)),
      first_gemm_again_(options.recompute.again(RecomputeModule::mlp)),
      sub_batches_(tp.sub_batches()) {}

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

void GatedMlp::recompute(Exec& ex, const Microbatch& microbatch, const Tensor& x, Saved& saved) const {
  if (first_gemm_again_) {
    // In the sub-microbatches of the forward pass: a GEMM of other rows may have other bits.
    Microbatch again = microbatch;
    for (again.sub_batch = {0, sub_batches_}; again.sub_batch.index < sub_batches_; ++again.sub_batch.index) {
      saved.first.in_region[static_cast<std::size_t>(again.sub_batch.index)] = again.sub_batch.of(x);
      first_gemm(ex, again, saved);
    }
  }
  if (!first_gemm_again_ && activation_again_) activate(ex, microbatch, saved);
}

void GatedMlp::backward_through(Exec& ex, const Microbatch& microbatch, const Tensor& dx, Saved& saved) const {
  const ops::Write write = microbatch.weight_grads;
  BackwardInRegion& entered = saved.entered;
  if (first_gemm_again_) entered.x.messages.wait(ex);
  recompute(ex, microbatch, entered.x.x, saved);
  const Tensor d_activated = ex.tensor(saved.last.x.shape(), dx.dtype());
  entered.d_out.messages.wait(ex);
  last_.backward_input(ex, entered.d_out.x, d_activated);
  last_.backward_weight_at(WeightGradTime::at_once, ex, entered, saved.last, write);
  const Tensor d_gate_up = ex.tensor(saved.first.y.shape(), dx.dtype());
  ops::swiglu_backward(ex, {.gate_up = saved.first.y, .dy = d_activated, .dgate_up = d_gate_up});
  InFlight sums = first_.backward_input(ex, d_gate_up, dx);
  entered.x.messages.wait(ex);
  first_.backward_weight(ex, d_gate_up, entered.x.x, write);
  last_.backward_weight_at(WeightGradTime::beside_sum, ex, entered, saved.last, write);
  sums.wait(ex);
}

}  // namespace megalith::nn
