#include "megalith/nn/norm.h"

#include "megalith/nn/param_specs.h"
#include "megalith/ops/norm.h"

namespace megalith::nn {

void Norm::declare(std::vector<ParamSpec>& specs, const NormSpec& spec, Index hidden_size, const TensorParallel& tp) {
  const auto add = [&](const char* name, Init init) {
    specs.push_back(replicated(spec.name + name, {hidden_size}, tp.group(), init));
    specs.back().placement = tp.outside_placement();
  };
  add(".weight", Init::ones);
  if (spec.kind == NormKind::layer) add(".bias", Init::zeros);
}

Norm::Norm(const NormSpec& spec, ParamSet& params)
    : gamma_(&params.at(spec.name + ".weight")),
      beta_(spec.kind == NormKind::layer ? &params.at(spec.name + ".bias") : nullptr),
      eps_(spec.eps) {}

void Norm::make_results(Exec& ex, const Shape& shape, DType dtype, Saved& saved, const SubBatch& sub_batch) const {
  if (saved.out)
    saved.y = saved.out;
  else
    sub_batch.make(ex, saved.y, shape, dtype);
  if (!is_rms()) sub_batch.make(ex, saved.mean, {shape[0]}, statistics_dtype(dtype));
  sub_batch.make(ex, saved.rstd, {shape[0]}, statistics_dtype(dtype));
}

Tensor Norm::forward(Exec& ex, const Tensor& x, Saved& saved, const SubBatch& sub_batch) const {
  saved.x = x;
  make_results(ex, x.shape(), x.dtype(), saved, sub_batch);
  ops::norm_forward(ex, {.x = sub_batch.of(x),
                         .gamma = gamma_->value,
                         .beta = is_rms() ? Tensor() : beta_->value,
                         .y = sub_batch.of(saved.y),
                         .mean = is_rms() ? Tensor() : sub_batch.of(saved.mean),
                         .rstd = sub_batch.of(saved.rstd),
                         .eps = eps_});
  return saved.y;
}

Tensor Norm::forward_residual(Exec& ex, const Tensor& x, const Tensor& bias, const Tensor& residual,
                              const ops::Dropout& dropout, Saved& saved, const SubBatch& sub_batch) const {
  make_results(ex, x.shape(), x.dtype(), saved, sub_batch);
  ops::residual_norm(ex, {.x = sub_batch.of(x),
                          .bias = bias,
                          .residual = sub_batch.of(residual),
                          .gamma = gamma_->value,
                          .beta = is_rms() ? Tensor() : beta_->value,
                          .sum = sub_batch.of(saved.x),
                          .y = sub_batch.of(saved.y),
                          .mean = is_rms() ? Tensor() : sub_batch.of(saved.mean),
                          .rstd = sub_batch.of(saved.rstd),
                          .eps = eps_,
                          .dropout = dropout});
  return saved.y;
}

ops::NormBackward Norm::backward_args(const Tensor& dy, const Saved& saved, const GradWithBias& dx) const {
  return {.dy = dy,
          .x = saved.x,
          .gamma = gamma_->value,
          .mean = saved.mean,
          .rstd = saved.rstd,
          .residual = {},
          .dx = dx.grad,
          .gamma_grad = gamma_->grad,
          .beta_grad = is_rms() ? Tensor() : beta_->grad,
          .bias_grad = dx.bias_grad};
}

void Norm::backward(Exec& ex, const Tensor& dy, const Saved& saved, const Tensor& residual,
                    const GradWithBias& dx) const {
  ops::NormBackward args = backward_args(dy, saved, dx);
  args.residual = residual;
  ops::norm_backward(ex, args);
}

void Norm::backward_of_sum(Exec& ex, const Tensor& dy, const Tensor& more_dy, const Saved& saved,
                           const GradWithBias& dx) const {
  ops::NormBackward args = backward_args(dy, saved, dx);
  args.more_dy = more_dy;
  ops::norm_backward(ex, args);
}

}  // namespace megalith::nn
