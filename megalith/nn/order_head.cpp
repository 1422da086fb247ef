#include "megalith/nn/order_head.h"

#include "megalith/ops/argmax.h"
#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/elementwise.h"

namespace megalith::nn {

void OrderHead::declare(std::vector<ParamSpec>& specs, const std::string& name, const StreamSpec& stream,
                        const comm::Group& tp) {
  const Index hidden = stream.hidden_size;
  ReplicatedLinear::declare(specs, name + "pooler", {hidden, hidden}, tp, stream.init_std);
  ReplicatedLinear::declare(specs, name + "order", {hidden, kClasses}, tp, stream.init_std);
}

OrderHead::OrderHead(const std::string& name, ParamSet& params)
    : pooler_(name + "pooler", params), classes_(name + "order", params) {}

Tensor OrderHead::pool(Exec& ex, const Tensor& x) const {
  Tensor pooled = pooler_.forward(ex, x);
  ops::tanh_forward(ex, pooled, pooled);
  return pooled;
}

void OrderHead::forward(Exec& ex, const Tensor& x, const Inputs& inputs, Saved& saved) const {
  const Index samples = x.dim(0);
  saved.x = x;
  saved.pooled = pool(ex, x);
  saved.d_logits = classes_.forward(ex, saved.pooled);
  const Tensor best = ex.tensor({samples, 2}, DType::f64), ids = ex.tensor({samples}, DType::i32);
  ops::argmax(ex, {.logits = saved.d_logits, .best = best, .vocab_size = kClasses});
  ops::argmax_of_shards(ex, {.best = best, .ids = ids});
  ops::count_matches(ex, {.ids = ids, .targets = inputs.labels, .sum = inputs.sums.rows(1, 1)});
  ops::cross_entropy(ex, {.logits = saved.d_logits,
                          .targets = inputs.labels,
                          .step_state = inputs.state,
                          .loss = ex.tensor({samples}, statistics_dtype(x.dtype())),
                          .loss_sum = inputs.sums.rows(0, 1),
                          .vocab_size = kClasses});
}

void OrderHead::infer(Exec& ex, const Tensor& x, const Inputs& inputs, const HeadResults& results) const {
  const Tensor pooled = pool(ex, x);
  if (results.pooled) ops::copy(ex, pooled, results.pooled);
  if (!results.class_logits && !results.label_losses) return;
  const Tensor logits = classes_.forward(ex, pooled);
  if (results.class_logits) ops::copy(ex, logits, results.class_logits);
  if (!results.label_losses) return;
  ops::cross_entropy(ex, {.logits = logits,
                          .targets = inputs.labels,
                          .step_state = {},
                          .loss = results.label_losses,
                          .loss_sum = inputs.sums,
                          .vocab_size = kClasses});
}

void OrderHead::backward(Exec& ex, const Saved& saved, const Tensor& dx, ops::Write write) const {
  const Tensor d_pooled = ex.tensor_like(saved.pooled);
  classes_.backward_input(ex, saved.d_logits, d_pooled);
  classes_.backward_weight(ex, saved.d_logits, saved.pooled, write);
  ops::tanh_backward(ex, {.y = saved.pooled, .dy = d_pooled, .dx = d_pooled});
  pooler_.backward_input(ex, d_pooled, dx);
  pooler_.backward_weight(ex, d_pooled, saved.x, write);
}

}  // namespace megalith::nn
