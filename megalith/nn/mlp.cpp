#include "megalith/nn/mlp.h"

#include "megalith/nn/param_specs.h"

namespace megalith::nn {

void Mlp::declare(std::vector<ParamSpec>& specs, const std::string& name, const BlockConfig& config,
                  const comm::Group& tp) {
  const Index h = config.hidden_size, f = config.ffn_hidden_size;
  specs.push_back(rows_split(name + ".up.weight", f, h, tp, config.init_std));
  specs.push_back(vector_split(name + ".up.bias", f, tp));
  specs.push_back(columns_split(name + ".down.weight", h, f, tp, config.residual_init_std));
  specs.push_back(replicated(name + ".down.bias", {h}, tp, Init::zeros));
}

Mlp::Mlp(const std::string& name, const TensorParallel& tp, ParamBuffer& params)
    : up_(tp, params.at(name + ".up.weight"), params.at(name + ".up.bias")),
      down_(tp, params.at(name + ".down.weight"), params.at(name + ".down.bias")) {}

void Mlp::backward(Exec& ex, EnteredBackward& entered, const Saved& saved, const Tensor& dx, ops::Write write) const {
  const Tensor dz = ex.tensor(saved.up.y.shape(), dx.dtype());
  entered.d_out.messages.wait(ex);
  down_.backward_input_gelu(ex, entered.d_out.x, saved.up.y, dz, up_.bias_grad());
  down_.backward_weight_at(WeightGradTime::at_once, ex, entered, saved.down, write);
  InFlight sums = up_.backward_input(ex, dz, dx);
  entered.x.messages.wait(ex);
  up_.backward_weight_without_bias(ex, dz, entered.x.x, write);
  down_.backward_weight_at(WeightGradTime::beside_sum, ex, entered, saved.down, write);
  sums.wait(ex);
}

void Mlp::finish_backward(Exec& ex, const EnteredBackward& entered, const Saved& saved, ops::Write write) const {
  down_.backward_weight_at(WeightGradTime::beside_entering, ex, entered, saved.down, write);
}

}  // namespace megalith::nn
