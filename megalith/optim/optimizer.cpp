#include "megalith/optim/optimizer.h"

#include "megalith/ops/elementwise.h"

namespace megalith::optim {

void Optimizer::allocate(MemoryLedger& ledger) {
  memory_ = ledger.take("optimizer", bytes(params_));
  m_ = memory_.view({params_.numel()}, params_.dtype());
  v_ = memory_.view({params_.numel()}, params_.dtype(), params_.numel() * size_of(params_.dtype()));
}

void Optimizer::sum_of_squares(Exec& ex, const Tensor& sum_squares) const {
  ops::fill(ex, sum_squares, 0);
  ops::sum_of_squares(ex, params_.grads().rows(0, params_.owned_numel()), sum_squares);
}

void Optimizer::step(Exec& ex, const Tensor& verdict) const {
  for (const Param& param : params_.params()) {
    ops::adamw(ex, {.value = param.value,
                    .m = params_.part(m_, param),
                    .v = params_.part(v_, param),
                    .grad = param.grad,
                    .verdict = verdict,
                    .beta1 = config_.beta1,
                    .beta2 = config_.beta2,
                    .eps = config_.eps,
                    .weight_decay = param.spec.decay == Decay::yes ? config_.weight_decay : 0.0});
  }
}

}  // namespace megalith::optim
