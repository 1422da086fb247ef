#include "megalith/nn/layer_norm.h"

#include "megalith/ops/norm.h"

namespace megalith::nn {

Tensor LayerNorm::forward(Exec& ex, const Tensor& x, Saved& saved) const {
  Tensor y = ex.tensor(x.shape(), x.dtype());
  saved = {x, ex.tensor({x.dim(0)}, x.dtype()), ex.tensor({x.dim(0)}, x.dtype())};
  ops::layer_norm_forward(ex, {.x = x,
                               .gamma = gamma_.value,
                               .beta = beta_.value,
                               .y = y,
                               .mean = saved.mean,
                               .rstd = saved.rstd,
                               .eps = eps_});
  return y;
}

void LayerNorm::backward_input(Exec& ex, const Tensor& dy, const Saved& saved, const Tensor& residual,
                               const Tensor& dx) const {
  ops::layer_norm_backward(ex, {.dy = dy,
                                .x = saved.x,
                                .gamma = gamma_.value,
                                .mean = saved.mean,
                                .rstd = saved.rstd,
                                .residual = residual,
                                .dx = dx});
}

void LayerNorm::backward_weight(Exec& ex, const Tensor& dy, const Saved& saved) const {
  ops::layer_norm_weight_backward(ex, {.dy = dy,
                                       .x = saved.x,
                                       .mean = saved.mean,
                                       .rstd = saved.rstd,
                                       .gamma_grad = gamma_.grad,
                                       .beta_grad = beta_.grad});
}

}  // namespace megalith::nn
