#include "megalith/nn/seam.h"

namespace megalith::nn {

void Seam::forward(Exec& ex, const Microbatch& microbatch, const Tensor& y, const Tensor& residual,
                   Saved& saved) const {
  if (!before_) {
    recompute_norm(ex, microbatch, saved);
    return;
  }
  const Tensor bias = before_->bias == nullptr ? Tensor() : before_->bias->value;
  tp_.for_runs(microbatch, before_->dropout, [&](const SubBatch& run, const ops::Dropout& dropout) {
    if (norm_) {
      norm_->forward_residual(ex, y, bias, residual, dropout, saved, run);
    } else {
      ops::bias_dropout_residual(
          ex, {.x = run.of(y), .bias = bias, .residual = run.of(residual), .out = run.of(saved.x), .dropout = dropout});
    }
  });
}

}  // namespace megalith::nn
