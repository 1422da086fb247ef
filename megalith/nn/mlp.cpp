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

Mlp::Mlp(const std::string& name, const comm::Group& tp, ParamBuffer& params)
    : up_(tp, params.at(name + ".up.weight"), params.at(name + ".up.bias")),
      down_(tp, params.at(name + ".down.weight"), params.at(name + ".down.bias")) {}

comm::Pending Mlp::forward(Exec& ex, const Tensor& x, Saved& saved, const Part& part) const {
  up_.forward_gelu(ex, x, saved.down.x, saved.up, part);
  return down_.forward(ex, saved.down.x, saved.down, part);
}

void Mlp::backward(Exec& ex, const Tensor& dy, const Saved& saved, const Tensor& dx, ops::Write write) const {
  Tensor dz = ex.tensor(saved.up.y.shape(), dy.dtype());
  down_.backward_input_gelu(ex, dy, saved.up.y, dz, up_.bias_grad());
  const bool hides_sum = up_.sums_input_grads();  // if so two products follow it; else dy is best read again at once
  if (!hides_sum) down_.backward_weight(ex, dy, saved.down, write);
  comm::Pending reduced = up_.backward_input(ex, dz, dx);
  up_.backward_weight_without_bias(ex, dz, saved.up, write);
  if (hides_sum) down_.backward_weight(ex, dy, saved.down, write);
  reduced.wait(ex);
}

}  // namespace megalith::nn
