#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

/// The largest logit of each row among the real columns of a shard, and its global id. The lower id wins among equal
/// logits. A NaN is never the largest.
///   best[t] = (max over v of z[t, v], the lowest first_id + v that has it)
/// Columns whose id is vocab_size or more are padding. A row without a number gives (-inf, -1). A pair holds both as
/// f64, which is exact. So the ranks of a split vocabulary need one all-gather of pairs.
struct Argmax {
  Tensor logits;  // in   [T, V/tp]
  Tensor best;    // out  [T, 2] f64: the logit, its id
  Index first_id = 0, vocab_size = 0;
};
void argmax(Exec& ex, const Argmax& args);

/// ids[t] = the id of the largest of the shards' pairs for row t. The lower id wins among equal logits. -1 where no
/// shard has a number.
struct ArgmaxOfShards {
  Tensor best;  // in   [shards * T, 2] f64: Argmax::best of each shard, in any order
  Tensor ids;   // out  [T] i32
};
void argmax_of_shards(Exec& ex, const ArgmaxOfShards& args);

/// sum += the number of rows whose id is the target; -1 is none.
struct CountMatches {
  Tensor ids, targets;  // in   [T] i32
  Tensor sum;           // out, accumulated  [1] f64
};
void count_matches(Exec& ex, const CountMatches& args);

}  // namespace megalith::ops
