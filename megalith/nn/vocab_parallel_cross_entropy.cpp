#include "megalith/nn/vocab_parallel_cross_entropy.h"

#include "megalith/ops/cross_entropy.h"

namespace megalith::nn {

Tensor VocabParallelCrossEntropy::forward(Exec& ex, const Microbatch& microbatch, const Tensor& logits,
                                          const Tensor& targets, const Tensor& loss_sum, Saved& saved) const {
  const Index tokens = logits.dim(0);
  const DType sum_dtype = statistics_dtype(logits.dtype());
  const Tensor loss = ex.tensor({tokens}, sum_dtype);
  if (tp_.size() == 1) {
    saved = {logits, {}};
    ops::cross_entropy(ex, {.logits = logits,
                            .targets = targets,
                            .step_state = microbatch.mode == Mode::train ? microbatch.step_state : Tensor(),
                            .loss = loss,
                            .loss_sum = loss_sum,
                            .vocab_size = vocab_.vocab_size});
    return loss;
  }
  const Tensor row_max = ex.tensor({tokens}, sum_dtype);
  ops::logits_max(ex, logits, row_max, vocab_.first_id, vocab_.vocab_size);
  comm::all_reduce(ex, tp_, row_max, comm::Reduce::max).wait(ex);
  saved = {logits, ex.tensor({2, tokens}, sum_dtype)};
  ops::logits_sum_exp(ex, {.logits = logits,
                           .row_max = row_max,
                           .targets = targets,
                           .sums = saved.sums,
                           .first_id = vocab_.first_id,
                           .vocab_size = vocab_.vocab_size});
  comm::all_reduce(ex, tp_, saved.sums, comm::Reduce::sum).wait(ex);
  ops::loss_from_sums(
      ex,
      {.sums = saved.sums, .targets = targets, .loss = loss, .loss_sum = loss_sum, .vocab_size = vocab_.vocab_size});
  return loss;
}

Tensor VocabParallelCrossEntropy::backward(Exec& ex, const Microbatch& microbatch, const Tensor& targets,
                                           const Saved& saved) const {
  if (tp_.size() == 1) return saved.logits;
  ops::logits_backward(ex, {.logits = saved.logits,
                            .sums = saved.sums,
                            .targets = targets,
                            .step_state = microbatch.step_state,
                            .first_id = vocab_.first_id});
  return saved.logits;
}

}  // namespace megalith::nn
