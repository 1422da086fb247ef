#include "megalith/nn/layer_norm.h"

#include "megalith/ops/norm.h"

namespace megalith::nn {

LayerNorm::Saved LayerNorm::make_saved(Exec& ex, const Tensor& x) {
  const DType dtype = statistics_dtype(x.dtype());
  return {x, ex.tensor({x.dim(0)}, dtype), ex.tensor({x.dim(0)}, dtype)};
}

Tensor LayerNorm::forward(Exec& ex, const Tensor& x, Saved& saved) const {
  Tensor y = ex.tensor(x.shape(), x.dtype());
  saved = make_saved(ex, x);
  ops::layer_norm_forward(ex, {.x = x,
                               .gamma = gamma_.value,
                               .beta = beta_.value,
                               .y = y,
                               .mean = saved.mean,
                               .rstd = saved.rstd,
                               .eps = eps_});
  return y;
}

Tensor LayerNorm::forward_residual(Exec& ex, const Tensor& x, const Tensor& bias, const Tensor& residual,
                                   const ops::Dropout& dropout, Saved& saved) const {
  Tensor y = ex.tensor(x.shape(), x.dtype());
  saved = make_saved(ex, ex.tensor(x.shape(), x.dtype()));
  ops::residual_layer_norm(ex, {.x = x,
                                .bias = bias,
                                .residual = residual,
                                .gamma = gamma_.value,
                                .beta = beta_.value,
                                .sum = saved.x,
                                .y = y,
                                .mean = saved.mean,
                                .rstd = saved.rstd,
                                .eps = eps_,
                                .dropout = dropout});
  return y;
}

void LayerNorm::backward(Exec& ex, const Tensor& dy, const Saved& saved, const Tensor& residual,
                         const Tensor& dx) const {
  ops::layer_norm_backward(ex, {.dy = dy,
                                .x = saved.x,
                                .gamma = gamma_.value,
                                .mean = saved.mean,
                                .rstd = saved.rstd,
                                .residual = residual,
                                .dx = dx,
                                .gamma_grad = gamma_.grad,
                                .beta_grad = beta_.grad});
}

}  // namespace megalith::nn
