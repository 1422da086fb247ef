#include "megalith/nn/vocab_parallel_embedding.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/embedding.h"

namespace megalith::nn {

VocabShard vocab_shard(Index vocab_size, Index padded_vocab_size, const comm::Group& tp) {
  if (padded_vocab_size < vocab_size || padded_vocab_size % tp.size() != 0) {
    throw ConfigError(str("model.padded_vocab_size = ", padded_vocab_size, ": must be at least model.vocab_size = ",
                          vocab_size, " and divisible by parallel.tp = ", tp.size()));
  }
  const Index held = padded_vocab_size / tp.size();
  return {vocab_size, padded_vocab_size, held * tp.rank(), held};
}

ParamSpec token_table(std::string name, const VocabShard& vocab, Index hidden_size, double init_std) {
  const Index real = std::clamp<Index>(vocab.vocab_size - vocab.first_id, 0, vocab.held);
  const Index first = std::min(vocab.first_id, vocab.vocab_size);
  TensorSlice slice{std::move(name), {vocab.vocab_size, hidden_size}, {first, 0}, {real, hidden_size}};
  return {std::move(slice), {vocab.held, hidden_size}, Init::normal, init_std};
}

void VocabParallelEmbedding::forward(Exec& ex, const Microbatch& microbatch, const Tensor& ids, const Tensor& y) const {
  const Tensor sums = tp_.region_sums(ex, y);
  ops::embedding_forward(
      ex, {.ids = ids, .table = table_.value, .y = sums, .first_id = vocab_.first_id, .vocab_size = vocab_.vocab_size});
  tp_.from_region(ex, sums, y, kWholeMicrobatch).wait(ex);
  if (microbatch.positions) return add_positions(ex, microbatch.positions, y);
  tp_.for_blocks(microbatch, dropout_, [&](const SubBatch& block, const ops::Dropout& dropout) {
    const Tensor rows = block.of(y);
    if (position_ != nullptr)  // samples may be shorter than the table
      ops::add_position(
          ex, {.x = rows, .position = position_->value.rows(0, microbatch.seq_len), .y = rows, .dropout = dropout});
    else if (dropout.probability > 0)
      ops::dropout_backward(ex, {.dout = rows, .dx = rows, .dropout = dropout});  // a dropout is its own gradient's op
  });
}

void VocabParallelEmbedding::add_positions(Exec& ex, const Tensor& positions, const Tensor& y) const {
  if (position_ == nullptr) return;
  const Tensor rows = ex.tensor_like(y);
  ops::embedding_forward(
      ex, {.ids = positions, .table = position_->value, .y = rows, .vocab_size = position_->value.dim(0)});
  ops::add(ex, y, rows, y);
}

void VocabParallelEmbedding::backward_weight(Exec& ex, const Microbatch& microbatch, const Tensor& ids,
                                             const Tensor& dy) const {
  TensorParallel::InRegion d_sum =
      tp_.to_region(ex, tp_.through_dropout(ex, microbatch, dropout_, dy), kWholeMicrobatch);
  d_sum.messages.wait(ex);
  if (position_ != nullptr) ops::position_backward(ex, d_sum.x, position_->grad);
  ops::embedding_backward(ex, {.ids = ids, .dy = d_sum.x, .table_grad = table_.grad, .first_id = vocab_.first_id});
}

}  // namespace megalith::nn
