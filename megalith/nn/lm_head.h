#pragma once
#include "megalith/nn/norm.h"
#include "megalith/nn/tensor_parallel.h"
#include "megalith/nn/vocab_parallel_cross_entropy.h"

namespace megalith::nn {

/// The end of a language model: final norm, logits against a table (the token table, where they are tied), loss.
/// x [O, H] -> logits [T, V/tp] -> loss [T], with O = T or its share outside a region (TensorParallel). The logits are
/// a region; with sequence parallelism backward gathers its rows again for the table's gradient.
class LmHead {
 public:
  struct Saved {
    Norm::Saved norm;
    VocabParallelCrossEntropy::Saved loss;
    Tensor normed;  ///< [O, H]
  };
  LmHead(const VocabShard& vocab, const TensorParallel& tp, Norm norm, Param& table)
      : vocab_(vocab), tp_(tp), norm_(std::move(norm)), table_(table), cross_entropy_(vocab, tp.group()) {}

  /// This rank's logits [T, V/tp]. The padding columns hold the products with their zero rows.
  Tensor logits(Exec& ex, const Tensor& x, Saved& saved) const;
  /// loss [T]; adds its sum to loss_sum [1] f64.
  Tensor forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& targets, const Tensor& loss_sum,
                 Saved& saved) const;
  /// The same for an evaluation, which also asks for the likeliest id of every row: best_ids [T] i32 is overwritten,
  /// unless it is undefined.
  Tensor score(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& targets, const Tensor& loss_sum,
               const Tensor& best_ids) const;
  /// Overwrites dx [O, H] and adds to its bias_grad. Adds to the gradients of table and norm.
  void backward(Exec& ex, const Microbatch& microbatch, const Tensor& targets, const Saved& saved,
                const GradWithBias& dx) const;

 private:
  VocabShard vocab_;
  TensorParallel tp_;
  Norm norm_;
  Param& table_;  // [V/tp, H]
  VocabParallelCrossEntropy cross_entropy_;
};

}  // namespace megalith::nn
