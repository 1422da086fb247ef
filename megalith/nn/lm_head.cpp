#include "megalith/nn/lm_head.h"

#include "megalith/nn/vocab_parallel_argmax.h"
#include "megalith/ops/elementwise.h"

namespace megalith::nn {

Tensor LmHead::outputs(Exec& ex, const Tensor& x, Saved& saved) const {
  State& state = own(saved);
  normalize(ex, x, state);
  return logits(ex, state, Mode::evaluate);
}

void LmHead::normalize(Exec& ex, const Tensor& x, State& state) const {
  state.normed = norm_ ? norm_->forward(ex, x, state.norm) : x;
}

Tensor LmHead::logits(Exec& ex, State& state, Mode mode) const {
  TensorParallel::InRegion in_region = tp_.to_region(ex, state.normed, kWholeMicrobatch);
  Tensor logits = ex.tensor({in_region.x.dim(0), table_.value.dim(0)}, state.normed.dtype());
  in_region.messages.wait(ex);
  // With sequence parallelism backward gathers the rows again, and quantises those.
  const bool is_kept = mode == Mode::train && !tp_.is_sequence_parallel();
  const RowOperands operands = make_row_operands(ex, formats_, in_region.x.shape(), is_kept);
  state.x_turned = operands.turned;
  multiply_rows(ex, formats_, operands,
                {.a = in_region.x, .b = table_.value, .c = logits, .transpose_b = ops::Transpose::yes});
  return logits;
}

Tensor LmHead::forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                       Saved& saved) const {
  normalize(ex, x, own(saved));
  const Tensor logits = this->logits(ex, own(saved), microbatch.mode);
  return cross_entropy_.forward(ex, microbatch, logits, inputs.targets, inputs.loss_sums, own(saved).loss);
}

void LmHead::infer_rows(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                        const HeadResults& results) const {
  require_made(results, ResultOf::row, {Result::losses, Result::best_ids, Result::hidden});
  State state;
  normalize(ex, x, state);
  if (results.hidden) ops::copy(ex, state.normed, results.hidden);
  if (!results.losses && !results.best_ids) return;
  const Tensor logits = this->logits(ex, state, Mode::evaluate);
  if (results.best_ids) vocab_parallel_argmax(ex, vocab_, tp_.group(), logits, results.best_ids);
  if (!results.losses) return;
  ops::copy(ex, cross_entropy_.forward(ex, microbatch, logits, inputs.targets, inputs.loss_sums, state.loss),
            results.losses);
}

void LmHead::backward(Exec& ex, const Microbatch& microbatch, const HeadInputs& inputs, Saved& saved,
                      const GradWithBias& dx) const {
  State& state = own(saved);
  const Tensor d_logits = cross_entropy_.backward(ex, microbatch, inputs.targets, state.loss);
  const Tensor d_normed = norm_ ? ex.tensor_like(state.normed) : dx.grad;
  TensorParallel::InRegion in_region = tp_.to_region(ex, state.normed, kWholeMicrobatch);
  const Tensor sums = tp_.region_sums(ex, d_normed);
  const RowOperands operands = make_row_operands(ex, formats_, d_logits.shape(), true);
  multiply_rows(ex, formats_, operands, {.a = d_logits, .b = table_.value, .c = sums});
  in_region.messages.wait(ex);
  InFlight left = tp_.from_region(ex, sums, d_normed, kWholeMicrobatch);
  add_weight_gradient(ex, formats_.weight_grad,
                      {.a = d_logits,
                       .b = in_region.x,
                       .c = table_.grad,
                       .transpose_a = ops::Transpose::yes,
                       .write = microbatch.weight_grads},
                      operands.turned, state.x_turned);
  left.wait(ex);
  if (norm_) norm_->backward(ex, d_normed, state.norm, {}, dx);
}

}  // namespace megalith::nn
