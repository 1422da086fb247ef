#include "megalith/nn/bert_head.h"

#include "megalith/base/error.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/rows.h"

namespace megalith::nn {
namespace {

constexpr std::array kBertLosses{LossSpec{"mlm_loss", 1, "masked_tokens"}, LossSpec{"order_loss"},
                                 LossSpec{"order_accuracy", 0}};

}  // namespace

std::span<const LossSpec> BertHead::losses(OrderLoss order) {
  return std::span(kBertLosses).first(order == OrderLoss::none ? 1 : kBertLosses.size());
}

void BertHead::declare(std::vector<ParamSpec>& specs, const BertHeadSpec& spec, const VocabShard& vocab,
                       const StreamSpec& stream, const comm::Group& tp) {
  MaskedLmHead::declare(specs, spec.masked_lm, vocab, stream, tp);
  if (spec.order != OrderLoss::none) PooledClasses::declare(specs, PooledClasses::Spec(), stream, tp);
}

BertHead::BertHead(const BertHeadSpec& spec, const VocabShard& vocab, const TensorParallel& tp, ParamSet& params,
                   const Parts& parts)
    : tp_(tp), norm_(parts.norm), masked_lm_(spec.masked_lm, vocab, tp.group(), params, parts.table) {
  if (spec.order != OrderLoss::none) order_.emplace(PooledClasses::Spec(), params);
}

Tensor BertHead::read_rows(Exec& ex, const Tensor& x, const HeadInputs& inputs) const {
  TensorParallel::InRegion in_region = tp_.to_region(ex, x, kWholeMicrobatch);
  in_region.messages.wait(ex);
  Tensor rows = ex.tensor({inputs.rows.dim(0), x.dim(1)}, x.dtype());
  ops::permute_rows(ex, {.x = in_region.x, .pair_of = inputs.rows, .rows = rows});
  return rows;
}

Tensor BertHead::forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                         Saved& saved) const {
  State& state = own(saved);
  state.normed = normalized(ex, x, state.norm);
  const Tensor rows = read_rows(ex, state.normed, inputs);
  const Index masked = inputs.targets.dim(0);
  Tensor loss = masked_lm_.forward(ex, microbatch, rows.rows(0, masked), inputs.targets, inputs.loss_sums.rows(0, 1),
                                   state.masked_lm);
  if (order_) {
    const Tensor label_state = microbatch.mode == Mode::train ? inputs.label_state : Tensor();
    order_->forward(ex, microbatch, rows.rows(masked, microbatch.batch),
                    {.labels = inputs.labels, .state = label_state, .sums = inputs.loss_sums.rows(1, 2)}, state.order);
  }
  return loss;
}

void BertHead::backward(Exec& ex, const Microbatch& microbatch, const HeadInputs& inputs, Saved& saved,
                        const GradWithBias& dx) const {
  State& state = own(saved);
  const Index masked = inputs.targets.dim(0);
  const Tensor d_rows = ex.tensor({inputs.rows.dim(0), dx.grad.dim(1)}, dx.grad.dtype());
  masked_lm_.backward(ex, microbatch, inputs.targets, state.masked_lm, d_rows.rows(0, masked));
  if (order_) order_->backward(ex, microbatch, state.order, d_rows.rows(masked, microbatch.batch));
  const Tensor d_normed = norm_ ? ex.tensor_like(state.normed) : dx.grad;
  put_rows_back(ex, tp_, microbatch, inputs, d_rows, d_normed);
  if (norm_) norm_->backward(ex, d_normed, state.norm, {}, dx);
}

void BertHead::infer_rows(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                          const HeadResults& results) const {
  require_made(results, ResultOf::row, {Result::losses, Result::best_ids, Result::hidden});
  Norm::Saved norm;
  const Tensor normed = normalized(ex, x, norm);
  if (results.hidden) ops::copy(ex, normed, results.hidden);
  if (results.losses || results.best_ids)
    masked_lm_.infer(ex, microbatch, normed, inputs.targets, inputs.loss_sums.rows(0, 1), results);
}

void BertHead::infer_samples(Exec& ex, const Microbatch& /*microbatch*/, const Tensor& x, const HeadInputs& inputs,
                             const HeadResults& results) const {
  if (!order_) throw InternalError("[BertHead::infer_samples] bert.order = none: there are no results about samples");
  require_made(results, ResultOf::sample, {Result::label_losses, Result::class_logits, Result::pooled});
  Norm::Saved norm;
  order_->infer(ex, normalized(ex, x, norm),
                {.labels = inputs.labels, .state = {}, .sums = inputs.loss_sums.rows(0, 1)}, results);
}

}  // namespace megalith::nn
