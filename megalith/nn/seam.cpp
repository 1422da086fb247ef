#include "megalith/nn/seam.h"

#include "megalith/ops/elementwise.h"

namespace megalith::nn {

void Seam::forward(Exec& ex, const Microbatch& microbatch, const Tensor& y, const Tensor& residual,
                   Saved& saved) const {
  if (!before_) {
    recompute_norm(ex, microbatch, saved);
    return;
  }
  const Tensor bias = before_->bias == nullptr ? Tensor() : before_->bias->value;
  tp_.for_blocks(microbatch, before_->dropout, [&](const SubBatch& block, const ops::Dropout& dropout) {
    if (norm_) {
      norm_->forward_residual(ex, y, bias, residual, dropout, saved, block);
    } else {
      ops::bias_dropout_residual(ex, {.x = block.of(y),
                                      .bias = bias,
                                      .residual = block.of(residual),
                                      .out = block.of(saved.x),
                                      .dropout = dropout});
    }
  });
}

void Seam::backward(Exec& ex, const Tensor& d_normed, const Tensor& residual, const Saved& saved,
                    const GradWithBias& dx) const {
  if (placement_ == NormPlacement::pre)
    norm_->backward(ex, d_normed, saved, residual, dx);
  else if (norm_)
    norm_->backward_of_sum(ex, d_normed, residual, saved, dx);
  else
    ops::add(ex, d_normed, residual, dx.grad);
}

}  // namespace megalith::nn
