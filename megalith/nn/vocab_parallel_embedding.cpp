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

void VocabParallelEmbedding::forward(Exec& ex, const Microbatch& microbatch, const Ids& ids, const Tensor& y,
                                     Saved& saved) const {
  const Tensor rows = parts_.norm ? ex.tensor_like(y) : y;
  const Tensor sums = tp_.region_sums(ex, rows);
  ops::embedding_forward(ex, {.ids = ids.tokens,
                              .table = parts_.table.value,
                              .y = sums,
                              .first_id = vocab_.first_id,
                              .vocab_size = vocab_.vocab_size});
  if (tp_.group().rank() == 0) {
    if (parts_.types != nullptr) add_types(ex, ids.types, sums);
    if (parts_.position != nullptr && microbatch.positions) add_given_positions(ex, microbatch.positions, sums);
  }
  tp_.from_region(ex, sums, rows, kWholeMicrobatch).wait(ex);
  add_positions(ex, microbatch, parts_.norm ? DropoutSite() : parts_.dropout, rows);
  if (!parts_.norm) return;
  saved.out = y;
  parts_.norm->forward(ex, rows, saved);
  drop_out(ex, microbatch, parts_.dropout, y);
}

void VocabParallelEmbedding::add_types(Exec& ex, const Tensor& types, const Tensor& sums) const {
  const Tensor& table = parts_.types->value;
  if (!types) return ops::add_bias(ex, sums, table.rows(0, 1).reshaped({table.dim(1)}));
  const Tensor rows = ex.tensor_like(sums);
  ops::embedding_forward(ex, {.ids = types, .table = table, .y = rows, .vocab_size = table.dim(0)});
  ops::add(ex, sums, rows, sums);
}

void VocabParallelEmbedding::types_backward(Exec& ex, const Tensor& types, const Tensor& d_sums) const {
  const Tensor& grad = parts_.types->grad;
  if (!types) return ops::bias_backward(ex, d_sums, grad.rows(0, 1).reshaped({grad.dim(1)}));
  ops::embedding_backward(ex, {.ids = types, .dy = d_sums, .table_grad = grad});
}

void VocabParallelEmbedding::add_given_positions(Exec& ex, const Tensor& positions, const Tensor& sums) const {
  const Tensor& table = parts_.position->value;
  const Tensor rows = ex.tensor_like(sums);
  ops::embedding_forward(ex, {.ids = positions, .table = table, .y = rows, .vocab_size = table.dim(0)});
  ops::add(ex, sums, rows, sums);
}

void VocabParallelEmbedding::positions_backward(Exec& ex, const Microbatch& microbatch, const Tensor& d_sums) const {
  const Tensor& grad = parts_.position->grad;
  if (!microbatch.positions) return ops::position_backward(ex, d_sums, grad.rows(0, microbatch.seq_len));
  ops::embedding_backward(ex, {.ids = microbatch.positions, .dy = d_sums, .table_grad = grad});
}

void VocabParallelEmbedding::add_positions(Exec& ex, const Microbatch& microbatch, const DropoutSite& dropout,
                                           const Tensor& y) const {
  const Param* position = parts_.position;
  if (position == nullptr || microbatch.positions) return drop_out(ex, microbatch, dropout, y);
  tp_.for_blocks(microbatch, dropout, [&](const SubBatch& block, const ops::Dropout& in_block) {
    const Tensor rows = block.of(y);  // samples may be shorter than the table
    ops::add_position(
        ex, {.x = rows, .position = position->value.rows(0, microbatch.seq_len), .y = rows, .dropout = in_block});
  });
}

void VocabParallelEmbedding::drop_out(Exec& ex, const Microbatch& microbatch, const DropoutSite& dropout,
                                      const Tensor& y) const {
  tp_.for_blocks(microbatch, dropout, [&](const SubBatch& block, const ops::Dropout& in_block) {
    const Tensor rows = block.of(y);
    if (in_block.probability > 0)  // a dropout is its own gradient's op
      ops::dropout_backward(ex, {.dout = rows, .dx = rows, .dropout = in_block});
  });
}

void VocabParallelEmbedding::backward_weight(Exec& ex, const Microbatch& microbatch, const Ids& ids, const Tensor& dy,
                                             const Saved& saved) const {
  Tensor d_rows = tp_.through_dropout(ex, microbatch, parts_.dropout, dy);
  if (parts_.norm) {
    const Tensor d_normed = d_rows;
    d_rows = ex.tensor_like(d_normed);
    parts_.norm->backward(ex, d_normed, saved, {}, {d_rows});
  }
  TensorParallel::InRegion d_sum = tp_.to_region(ex, d_rows, kWholeMicrobatch);
  d_sum.messages.wait(ex);
  if (parts_.types != nullptr) types_backward(ex, ids.types, d_sum.x);
  if (parts_.position != nullptr) positions_backward(ex, microbatch, d_sum.x);
  ops::embedding_backward(
      ex, {.ids = ids.tokens, .dy = d_sum.x, .table_grad = parts_.table.grad, .first_id = vocab_.first_id});
}

}  // namespace megalith::nn
