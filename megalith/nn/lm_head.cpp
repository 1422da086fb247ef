#include "megalith/nn/lm_head.h"

#include "megalith/ops/matmul.h"

namespace megalith::nn {

Tensor LmHead::logits(Exec& ex, const Tensor& x, Saved& saved) const {
  saved.normed = norm_.forward(ex, x, saved.norm);
  Tensor logits = ex.tensor({x.dim(0), table_.value.dim(0)}, x.dtype());
  ops::matmul(ex, {.a = saved.normed, .b = table_.value, .c = logits, .transpose_b = ops::Transpose::yes});
  return logits;
}

Tensor LmHead::forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& targets,
                       const Tensor& loss_sum, Saved& saved) const {
  const Tensor z = logits(ex, x, saved);
  return cross_entropy_.forward(ex, microbatch, z, targets, loss_sum, saved.loss);
}

void LmHead::backward(Exec& ex, const Microbatch& microbatch, const Tensor& targets, const Saved& saved,
                      const Tensor& dx) const {
  const Tensor d_logits = cross_entropy_.backward(ex, microbatch, targets, saved.loss);
  const Tensor d_normed = ex.tensor(saved.normed.shape(), saved.normed.dtype());
  ops::matmul(ex, {.a = d_logits, .b = table_.value, .c = d_normed});
  comm::Pending reduced = comm::all_reduce(ex, tp_, d_normed, comm::Reduce::sum);
  ops::matmul(ex, {.a = d_logits,
                   .b = saved.normed,
                   .c = table_.grad,
                   .transpose_a = ops::Transpose::yes,
                   .write = microbatch.weight_grads});
  reduced.wait(ex);
  norm_.backward(ex, d_normed, saved.norm, {}, dx);
}

}  // namespace megalith::nn
