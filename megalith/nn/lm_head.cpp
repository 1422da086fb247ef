#include "megalith/nn/lm_head.h"

#include "megalith/nn/vocab_parallel_argmax.h"
#include "megalith/ops/matmul.h"

namespace megalith::nn {

Tensor LmHead::outputs(Exec& ex, const Tensor& x, Saved& saved) const {
  State& state = own(saved);
  state.normed = norm_ ? norm_->forward(ex, x, state.norm) : x;
  TensorParallel::InRegion in_region = tp_.to_region(ex, state.normed, kWholeMicrobatch);
  Tensor logits = ex.tensor({in_region.x.dim(0), table_.value.dim(0)}, x.dtype());
  in_region.messages.wait(ex);
  ops::matmul(ex, {.a = in_region.x, .b = table_.value, .c = logits, .transpose_b = ops::Transpose::yes});
  return logits;
}

Tensor LmHead::forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                       Saved& saved) const {
  const Tensor logits = outputs(ex, x, saved);
  return cross_entropy_.forward(ex, microbatch, logits, inputs.targets, inputs.loss_sums, own(saved).loss);
}

Tensor LmHead::score(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                     const Tensor& best_ids) const {
  State state;
  const Tensor logits = outputs(ex, x, state);
  if (best_ids) vocab_parallel_argmax(ex, vocab_, tp_.group(), logits, best_ids);
  return cross_entropy_.forward(ex, microbatch, logits, inputs.targets, inputs.loss_sums, state.loss);
}

void LmHead::backward(Exec& ex, const Microbatch& microbatch, const HeadInputs& inputs, Saved& saved,
                      const GradWithBias& dx) const {
  State& state = own(saved);
  const Tensor d_logits = cross_entropy_.backward(ex, microbatch, inputs.targets, state.loss);
  const Tensor d_normed = norm_ ? ex.tensor_like(state.normed) : dx.grad;
  TensorParallel::InRegion in_region = tp_.to_region(ex, state.normed, kWholeMicrobatch);
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
  if (norm_) norm_->backward(ex, d_normed, state.norm, {}, dx);
}

}  // namespace megalith::nn
