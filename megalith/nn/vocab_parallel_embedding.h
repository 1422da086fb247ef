#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megalith/nn/norm.h"
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

/// y = dropout(table[ids] + types[type ids] + position), with a norm before the dropout where there is one: ids [T] i32
/// -> y [O, H], with O = T or its share outside a region (TensorParallel). The lookup is a region: forward sums partial
/// rows over tp, of which rank 0's have the types and Microbatch::positions, backward brings their gradient to it, so
/// that all tables' gradients are of all rows. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
class VocabParallelEmbedding {
 public:
  /// position: null if positions come into the model elsewhere. types: null without.
  struct Parts {
    Param& table;            // [V/tp, H]
    Param* position;         // [S, H]
    Param* types = nullptr;  // [types, H]
    DropoutSite dropout;
    std::optional<Norm> norm = {};
  };
  /// Of every token. types: undefined if all are of type 0.
  struct Ids {
    Tensor tokens, types = {};  // [T] i32
  };
  /// Of the norm.
  using Saved = Norm::Saved;

  VocabParallelEmbedding(const VocabShard& vocab, TensorParallel tp, const Parts& parts)
      : vocab_(vocab), tp_(std::move(tp)), parts_(parts) {}

  /// Overwrites y. `ids` must stay until backward.
  void forward(Exec& ex, const Microbatch& microbatch, const Ids& ids, const Tensor& y, Saved& saved) const;
  /// Adds to the gradients of the tables and of the norm. dy [O, H].
  void backward_weight(Exec& ex, const Microbatch& microbatch, const Ids& ids, const Tensor& dy,
                       const Saved& saved) const;

 private:
  /// Adds the rows of the types to the sums [T, H] of a region.
  void add_types(Exec& ex, const Tensor& types, const Tensor& sums) const;
  void types_backward(Exec& ex, const Tensor& types, const Tensor& d_sums) const;
  /// Adds the embeddings of Microbatch::positions to the sums [T, H] of a region.
  void add_given_positions(Exec& ex, const Tensor& positions, const Tensor& sums) const;
  /// Adds those of all positions of a sample, unless positions are given, and drops out.
  void add_positions(Exec& ex, const Microbatch& microbatch, const DropoutSite& dropout, const Tensor& y) const;
  void positions_backward(Exec& ex, const Microbatch& microbatch, const Tensor& d_sums) const;
  void drop_out(Exec& ex, const Microbatch& microbatch, const DropoutSite& dropout, const Tensor& y) const;

  VocabShard vocab_;
  TensorParallel tp_;
  Parts parts_;
};

}  // namespace megalith::nn
