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

void LayerNorm::make_results(Exec& ex, const Shape& shape, DType dtype, Saved& saved, const SubBatch& sub_batch) {
  sub_batch.make(ex, saved.y, shape, dtype);
  sub_batch.make(ex, saved.mean, {shape[0]}, statistics_dtype(dtype));
  sub_batch.make(ex, saved.rstd, {shape[0]}, statistics_dtype(dtype));
}

Tensor LayerNorm::forward(Exec& ex, const Tensor& x, Saved& saved, const SubBatch& sub_batch) const {
  saved.x = x;
  make_results(ex, x.shape(), x.dtype(), saved, sub_batch);
  ops::layer_norm_forward(ex, {.x = sub_batch.of(x),
                               .gamma = gamma_.value,
                               .beta = beta_.value,
                               .y = sub_batch.of(saved.y),
                               .mean = sub_batch.of(saved.mean),
                               .rstd = sub_batch.of(saved.rstd),
                               .eps = eps_});
  return saved.y;
}

Tensor LayerNorm::forward_residual(Exec& ex, const Tensor& x, const Tensor& bias, const Tensor& residual,
                                   const ops::Dropout& dropout, Saved& saved, const SubBatch& sub_batch) const {
  make_results(ex, x.shape(), x.dtype(), saved, sub_batch);
  ops::residual_layer_norm(ex, {.x = sub_batch.of(x),
                                .bias = bias,
                                .residual = sub_batch.of(residual),
                                .gamma = gamma_.value,
                                .beta = beta_.value,
                                .sum = sub_batch.of(saved.x),
                                .y = sub_batch.of(saved.y),
                                .mean = sub_batch.of(saved.mean),
                                .rstd = sub_batch.of(saved.rstd),
                                .eps = eps_,
                                .dropout = dropout});
  return saved.y;
}

void LayerNorm::backward(Exec& ex, const Tensor& dy, const Saved& saved, const Tensor& residual,
                         const GradWithBias& dx) const {
  ops::layer_norm_backward(ex, {.dy = dy,
                                .x = saved.x,
                                .gamma = gamma_.value,
                                .mean = saved.mean,
                                .rstd = saved.rstd,
                                .residual = residual,
                                .dx = dx.grad,
                                .gamma_grad = gamma_.grad,
                                .beta_grad = beta_.grad,
                                .bias_grad = dx.bias_grad});
}

}  // namespace megalith::nn
