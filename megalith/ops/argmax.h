#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

/// Per row the largest logit among the real columns of a shard, and its global id. Equal logits: the lower id. A NaN is
/// never the largest.
///   best[t] = (max over v of z[t, v], the lowest first_id + v that has it)
/// Columns whose id is vocab_size or more are padding. A row without a number gives (-inf, -1). A pair holds both as
/// f64, which is exact, so that one all-gather of pairs is the exchange between the ranks of a split vocabulary.
struct Argmax {
  Tensor logits;  // in   [T, V/tp]
  Tensor best;    // out  [T, 2] f64: the logit, its id
  Index first_id = 0, vocab_size = 0;
};
void argmax(Exec& ex, const Argmax& args);

/// ids[t] = the id of the largest of the pairs that the shards have for row t. Equal logits: the lower id. -1 where no
/// shard has a number.
struct ArgmaxOfShards {
  Tensor best;  // in   [shards * T, 2] f64: Argmax::best of each shard, in any order
  Tensor ids;   // out  [T] i32
};
void argmax_of_shards(Exec& ex, const ArgmaxOfShards& args);

}  // namespace megalith::ops
