#include "megalith/nn/seam.h"

namespace megalith::nn {

void Seam::forward(Exec& ex, const Microbatch& microbatch, const Tensor& y, const Tensor& residual,
                   Saved& saved) const {
  if (!before_) {
    norm_again(ex, microbatch, saved);
    return;
  }
  tp_.for_runs(microbatch, before_->dropout, [&](const SubBatch& run, const ops::Dropout& dropout) {
    if (norm_) {
      norm_->forward_residual(ex, y, before_->bias->value, residual, dropout, saved, run);
    } else {
      ops::bias_dropout_residual(ex, {.x = run.of(y),
                                      .bias = before_->bias->value,
                                      .residual = run.of(residual),
                                      .out = run.of(saved.x),
                                      .dropout = dropout});
    }
  });
}

}  // namespace megalith::nn
