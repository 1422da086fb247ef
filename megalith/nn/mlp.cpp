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

void Mlp::backward(Exec& ex, const Tensor& dy, const Saved& saved, const Tensor& dx, ops::Write write) const {
  TensorParallel::Entered d_out = down_.enter_backward(ex, dy);
  Tensor dz = ex.tensor(saved.up.y.shape(), dy.dtype());
  d_out.messages.wait(ex);
  down_.backward_input_gelu(ex, d_out.x, saved.up.y, dz, up_.bias_grad());
  const bool hides_sum = up_.sums_input_grads();  // if so two products follow it; else dy is best read again at once
  if (!hides_sum) down_.backward_weight(ex, d_out.x, saved.down, write);
  ColumnParallelLinear::Backward up = up_.backward_input(ex, dz, saved.up, dx);
  up_.backward_weight_without_bias(ex, dz, up.x, write);
  if (hides_sum) down_.backward_weight(ex, d_out.x, saved.down, write);
  up.dx.wait(ex);
}

}  // namespace megalith::nn
