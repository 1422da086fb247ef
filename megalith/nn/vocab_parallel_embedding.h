#pragma once
#include <string>
#include <vector>

#include "megalith/nn/tensor_parallel.h"
#include "megalith/params/param_set.h"

namespace megalith::nn {

/// The shard of a vocabulary over `tp`: rank i owns ids [i V/tp, (i+1) V/tp) of the padded size V.
struct VocabShard {
  Index vocab_size = 0;  ///< real ids; ids from here to `padded` are never inputs or targets
  Index padded = 0;      ///< V, a multiple of tp
  Index first_id = 0;    ///< first owned id
  Index held = 0;        ///< V/tp
};
/// Throws ConfigError if tp does not divide the padded size.
VocabShard vocab_shard(Index vocab_size, Index padded_vocab_size, const comm::Group& tp);

/// The token table [V/tp, H]. Its global tensor has vocab_size rows: padding rows are always zero and are not saved, so
/// checkpoints do not depend on tp. Padding gets no gradient, and the decay of zero is zero.
ParamSpec token_table(std::string name, const VocabShard& vocab, Index hidden_size, double init_std);

/// y = dropout(table[ids] + position): ids [T] i32 -> y [O, H], with O = T or its share outside a region
/// (TensorParallel). The lookup is a region: forward sums partial rows over tp, backward brings their gradient to it,
/// so that both tables' gradients are of all rows. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
class VocabParallelEmbedding {
 public:
  /// `position` may be null: positions come into the model elsewhere.
  VocabParallelEmbedding(const VocabShard& vocab, TensorParallel tp, Param& table, Param* position,
                         const DropoutSite& dropout)
      : vocab_(vocab), tp_(std::move(tp)), table_(table), position_(position), dropout_(dropout) {}

  /// Overwrites y. `ids` must stay until backward.
  void forward(Exec& ex, const Microbatch& microbatch, const Tensor& ids, const Tensor& y) const;
  /// Adds to the gradients of the table and of the positions. dy [O, H].
  void backward_weight(Exec& ex, const Microbatch& microbatch, const Tensor& ids, const Tensor& dy) const;

 private:
  /// Adds the embeddings of Microbatch::positions, in evaluation.
  void add_positions(Exec& ex, const Tensor& positions, const Tensor& y) const;

  VocabShard vocab_;
  TensorParallel tp_;
  Param& table_;     // [V/tp, H]
  Param* position_;  // [S, H]
  DropoutSite dropout_;
};

}  // namespace megalith::nn
