#pragma once
#include "megalith/comm/group.h"
#include "megalith/nn/vocab_parallel_embedding.h"

namespace megalith::nn {

/// The likeliest id of every row of logits whose vocabulary is split across `tp`, the same on every rank of it. Equal
/// logits: the lower id. -1 for a row of NaN alone.
///   logits [T, V/tp], read only; ids [T] i32, overwritten.
/// Communicates 16 T bytes per rank: an all-gather of (logit, id). Scratch: 16 T tp bytes.
void vocab_parallel_argmax(Exec& ex, const VocabShard& vocab, const comm::Group& tp, const Tensor& logits,
                           const Tensor& ids);

}  // namespace megalith::nn
