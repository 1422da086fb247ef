#include "megalith/nn/masked_lm_head.h"

#include <algorithm>

#include "megalith/nn/vocab_parallel_argmax.h"
#include "megalith/ops/elementwise.h"

namespace megalith::nn {
namespace {

NormSpec norm_of(const MaskedLmHead::Spec& spec) { return {spec.name + ".norm", spec.norm_eps, spec.norm}; }

}  // namespace

ParamSpec vocabulary_bias(std::string name, const VocabShard& vocab) {
  const Index real = std::clamp<Index>(vocab.vocab_size - vocab.first_id, 0, vocab.held);
  const Index first = std::min(vocab.first_id, vocab.vocab_size);
  TensorSlice slice{std::move(name), {vocab.vocab_size}, {first}, {real}};
  return {std::move(slice), {vocab.held}, Init::zeros, 0, Decay::no};
}

void MaskedLmHead::declare(std::vector<ParamSpec>& specs, const Spec& spec, const VocabShard& vocab,
                           const StreamSpec& stream, const comm::Group& tp) {
  const Index hidden = stream.hidden_size;
  ReplicatedLinear::declare(specs, spec.name + ".dense", {hidden, hidden}, tp, stream.init_std);
  // Every rank has all masked rows, whoever holds the stream's.
  Norm::declare(specs, norm_of(spec), hidden, {tp, SequenceParallel::off, 1});
  specs.push_back(vocabulary_bias(spec.name + ".bias", vocab));
}

MaskedLmHead::MaskedLmHead(const Spec& spec, const VocabShard& vocab, const comm::Group& tp, ParamSet& params,
                           Param& table)
    : vocab_(vocab),
      tp_(tp),
      gelu_(spec.gelu),
      dense_(spec.name + ".dense", params),
      norm_(norm_of(spec), params),
      table_(table),
      bias_(params.at(spec.name + ".bias")),
      cross_entropy_(vocab, tp) {}

Tensor MaskedLmHead::logits(Exec& ex, const Tensor& x, Saved& saved) const {
  saved.x = x;
  saved.z = dense_.multiply(ex, x);
  const Tensor activated = ex.tensor_like(saved.z);
  ops::bias_gelu(ex, {.x = saved.z, .bias = dense_.bias().value, .y = activated, .form = gelu_});
  const Tensor normed = norm_.forward(ex, activated, saved.norm);
  Tensor logits = ex.tensor({x.dim(0), table_.value.dim(0)}, x.dtype());
  ops::matmul(ex, {.a = normed, .b = table_.value, .c = logits, .transpose_b = ops::Transpose::yes});
  ops::add_bias(ex, logits, bias_.value);
  return logits;
}

Tensor MaskedLmHead::forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& targets,
                             const Tensor& loss_sum, Saved& saved) const {
  return cross_entropy_.forward(ex, microbatch, logits(ex, x, saved), targets, loss_sum, saved.loss);
}

void MaskedLmHead::infer(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& targets,
                         const Tensor& loss_sum, const HeadResults& results) const {
  Saved saved;
  const Tensor logits = this->logits(ex, x, saved);
  if (results.best_ids) vocab_parallel_argmax(ex, vocab_, tp_, logits, results.best_ids);
  if (results.losses)
    ops::copy(ex, cross_entropy_.forward(ex, microbatch, logits, targets, loss_sum, saved.loss), results.losses);
}

void MaskedLmHead::backward(Exec& ex, const Microbatch& microbatch, const Tensor& targets, const Saved& saved,
                            const Tensor& dx) const {
  const Tensor d_logits = cross_entropy_.backward(ex, microbatch, targets, saved.loss);
  const Tensor d_normed = ex.tensor_like(saved.norm.y);
  ops::matmul(ex, {.a = d_logits, .b = table_.value, .c = d_normed});
  comm::Pending sum = comm::all_reduce(ex, tp_, d_normed, comm::Reduce::sum, comm::Priority::awaited);
  ops::matmul(ex, {.a = d_logits,
                   .b = saved.norm.y,
                   .c = table_.grad,
                   .transpose_a = ops::Transpose::yes,
                   .write = microbatch.weight_grads});
  ops::bias_backward(ex, d_logits, bias_.grad);
  sum.wait(ex);
  const Tensor d_activated = ex.tensor_like(d_normed);
  norm_.backward(ex, d_normed, saved.norm, {}, {d_activated});
  ops::gelu_backward(ex, {.z = saved.z, .dy = d_activated, .dz = d_activated, .form = gelu_});
  dense_.backward_weight(ex, d_activated, saved.x, microbatch.weight_grads);
  dense_.backward_input(ex, d_activated, dx);
}

}  // namespace megalith::nn
