#include "megalith/nn/layer_norm.h"

#include "megalith/nn/param_specs.h"
#include "megalith/ops/norm.h"

namespace megalith::nn {

void LayerNorm::declare(std::vector<ParamSpec>& specs, const std::string& name, Index hidden_size,
                        const TensorParallel& tp) {
  specs.push_back(replicated(name + ".weight", {hidden_size}, tp.group(), Init::ones));
  specs.push_back(replicated(name + ".bias", {hidden_size}, tp.group(), Init::zeros));
  for (auto spec = specs.end() - 2; spec != specs.end(); ++spec) spec->placement = tp.outside_placement();
}

void LayerNorm::make_results(Exec& ex, const Shape& shape, DType dtype, Saved& saved, const Part& part) {
  part.make(ex, saved.y, shape, dtype);
  part.make(ex, saved.mean, {shape[0]}, statistics_dtype(dtype));
  part.make(ex, saved.rstd, {shape[0]}, statistics_dtype(dtype));
}

Tensor LayerNorm::forward(Exec& ex, const Tensor& x, Saved& saved, const Part& part) const {
  saved.x = x;
  make_results(ex, x.shape(), x.dtype(), saved, part);
  ops::layer_norm_forward(ex, {.x = part.of(x),
                               .gamma = gamma_.value,
                               .beta = beta_.value,
                               .y = part.of(saved.y),
                               .mean = part.of(saved.mean),
                               .rstd = part.of(saved.rstd),
                               .eps = eps_});
  return saved.y;
}

Tensor LayerNorm::forward_residual(Exec& ex, const Tensor& x, const Tensor& bias, const Tensor& residual,
                                   const ops::Dropout& dropout, Saved& saved, const Part& part) const {
  make_results(ex, x.shape(), x.dtype(), saved, part);
  ops::residual_layer_norm(ex, {.x = part.of(x),
                                .bias = bias,
                                .residual = part.of(residual),
                                .gamma = gamma_.value,
                                .beta = beta_.value,
                                .sum = part.of(saved.x),
                                .y = part.of(saved.y),
                                .mean = part.of(saved.mean),
                                .rstd = part.of(saved.rstd),
                                .eps = eps_,
                                .dropout = dropout});
  return saved.y;
}

void LayerNorm::backward(Exec& ex, const Tensor& dy, const Saved& saved, const Tensor& residual,
                         const SummedGrad& dx) const {
  ops::layer_norm_backward(ex, {.dy = dy,
                                .x = saved.x,
                                .gamma = gamma_.value,
                                .mean = saved.mean,
                                .rstd = saved.rstd,
                                .residual = residual,
                                .dx = dx.grad,
                                .gamma_grad = gamma_.grad,
                                .beta_grad = beta_.grad,
                                .dx_sums = dx.row_sums});
}

}  // namespace megalith::nn
