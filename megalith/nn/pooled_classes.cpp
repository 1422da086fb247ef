#include "megalith/nn/pooled_classes.h"

#include "megalith/base/error.h"
#include "megalith/ops/argmax.h"
#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/init.h"

namespace megalith::nn {

void PooledClasses::declare(std::vector<ParamSpec>& specs, const Spec& spec, const StreamSpec& stream,
                            const comm::Group& tp) {
  const Index hidden = stream.hidden_size;
  ReplicatedLinear::declare(specs, spec.pooler, {hidden, hidden}, tp, stream.init_std);
  ReplicatedLinear::declare(specs, spec.numbers, {hidden, spec.numbers_per_row(), spec.rows == 1}, tp, stream.init_std);
}

PooledClasses::PooledClasses(const Spec& spec, ParamSet& params, std::uint64_t seed)
    : spec_(spec), seed_(seed), pooler_(spec.pooler, params), numbers_(spec.numbers, params) {}

ops::Dropout PooledClasses::dropout(const Microbatch& microbatch) const {
  ops::Dropout dropout = DropoutSite{spec_.dropout, seed_, spec_.dropout_site}.in(microbatch);
  dropout.seq_len = 1;
  return dropout;
}

Tensor PooledClasses::pool(Exec& ex, const Tensor& x) const {
  Tensor pooled = pooler_.forward(ex, x);
  ops::tanh_forward(ex, pooled, pooled);
  return pooled;
}

void PooledClasses::forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Inputs& inputs,
                            Saved& saved) const {
  saved.x = x;
  saved.pooled = pool(ex, x);
  saved.dropped = saved.pooled;
  if (const ops::Dropout dropout = this->dropout(microbatch); dropout.probability > 0) {
    saved.dropped = ex.tensor_like(saved.pooled);  // a dropout is its own gradient's op
    ops::dropout_backward(ex, {.dout = saved.pooled, .dx = saved.dropped, .dropout = dropout});
  }
  const Index choices = x.dim(0) / spec_.rows;
  saved.d_logits = numbers_.forward(ex, saved.dropped).reshaped({choices, spec_.classes});
  if (inputs.numbers) ops::cast(ex, saved.d_logits, inputs.numbers);
  const Tensor best = ex.tensor({choices, 2}, DType::f64), ids = ex.tensor({choices}, DType::i32);
  ops::argmax(ex, {.logits = saved.d_logits, .best = best, .vocab_size = spec_.classes});
  ops::argmax_of_shards(ex, {.best = best, .ids = ids});
  ops::count_matches(ex, {.ids = ids, .targets = inputs.labels, .sum = inputs.sums.rows(1, 1)});
  ops::cross_entropy(ex, {.logits = saved.d_logits,
                          .targets = inputs.labels,
                          .step_state = inputs.state,
                          .loss = ex.tensor({choices}, statistics_dtype(x.dtype())),
                          .loss_sum = inputs.sums.rows(0, 1),
                          .vocab_size = spec_.classes});
}

void PooledClasses::backward(Exec& ex, const Microbatch& microbatch, const Saved& saved, const Tensor& dx) const {
  const ops::Write write = microbatch.weight_grads;
  const Tensor d_numbers = saved.d_logits.reshaped({saved.x.dim(0), spec_.numbers_per_row()});
  const Tensor d_pooled = ex.tensor_like(saved.pooled);
  numbers_.backward_input(ex, d_numbers, d_pooled);
  numbers_.backward_weight(ex, d_numbers, saved.dropped, write);
  if (const ops::Dropout dropout = this->dropout(microbatch); dropout.probability > 0)
    ops::dropout_backward(ex, {.dout = d_pooled, .dx = d_pooled, .dropout = dropout});
  ops::tanh_backward(ex, {.y = saved.pooled, .dy = d_pooled, .dx = d_pooled});
  pooler_.backward_input(ex, d_pooled, dx);
  pooler_.backward_weight(ex, d_pooled, saved.x, write);
}

void PooledClasses::infer(Exec& ex, const Tensor& x, const Inputs& inputs, const HeadResults& results) const {
  const Tensor pooled = pool(ex, x);
  if (results.pooled) ops::copy(ex, pooled, results.pooled);
  if (!results.class_logits && !results.label_losses) return;
  const Tensor logits = numbers_.forward(ex, pooled);
  if (results.class_logits) ops::copy(ex, logits, results.class_logits);
  if (!results.label_losses) return;
  if (spec_.rows != 1) throw InternalError("[PooledClasses::infer] losses of labels: a choice has several rows");
  ops::cross_entropy(ex, {.logits = logits,
                          .targets = inputs.labels,
                          .step_state = {},
                          .loss = results.label_losses,
                          .loss_sum = inputs.sums,
                          .vocab_size = spec_.classes});
}

}  // namespace megalith::nn
