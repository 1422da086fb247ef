#include "megalith/nn/lm_head.h"

#include "megalith/nn/vocab_parallel_argmax.h"
#include "megalith/ops/matmul.h"

namespace megalith::nn {

Tensor LmHead::logits(Exec& ex, const Tensor& x, Saved& saved) const {
  saved.normed = norm_.forward(ex, x, saved.norm);
  TensorParallel::InRegion in_region = tp_.to_region(ex, saved.normed, kWholeMicrobatch);
  Tensor logits = ex.tensor({in_region.x.dim(0), table_.value.dim(0)}, x.dtype());
  in_region.messages.wait(ex);
  ops::matmul(ex, {.a = in_region.x, .b = table_.value, .c = logits, .transpose_b = ops::Transpose::yes});
  return logits;
}

Tensor LmHead::forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& targets,
                       const Tensor& loss_sum, Saved& saved) const {
  const Tensor z = logits(ex, x, saved);
  return cross_entropy_.forward(ex, microbatch, z, targets, loss_sum, saved.loss);
}

Tensor LmHead::score(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& targets,
                     const Tensor& loss_sum, const Tensor& best_ids) const {
  Saved saved;
  const Tensor z = logits(ex, x, saved);
  if (best_ids) vocab_parallel_argmax(ex, vocab_, tp_.group(), z, best_ids);
  return cross_entropy_.forward(ex, microbatch, z, targets, loss_sum, saved.loss);
}

void LmHead::backward(Exec& ex, const Microbatch& microbatch, const Tensor& targets, const Saved& saved,
                      const GradWithBias& dx) const {
  const Tensor d_logits = cross_entropy_.backward(ex, microbatch, targets, saved.loss);
  const Tensor d_normed = ex.tensor_like(saved.normed);
  TensorParallel::InRegion in_region = tp_.to_region(ex, saved.normed, kWholeMicrobatch);
  const Tensor sums = tp_.region_sums(ex, d_normed);
  ops::matmul(ex, {.a = d_logits, .b = table_.value, .c = sums});
  in_region.messages.wait(ex);
  InFlight left = tp_.from_region(ex, sums, d_normed, kWholeMicrobatch);
  ops::matmul(ex, {.a = d_logits,
                   .b = in_region.x,
                   .c = table_.grad,
                   .transpose_a = ops::Transpose::yes,
                   .write = microbatch.weight_grads});
  left.wait(ex);
  norm_.backward(ex, d_normed, saved.norm, {}, dx);
}

}  // namespace megalith::nn
