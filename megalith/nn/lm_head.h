#pragma once
#include "megalith/comm/group.h"
#include "megalith/nn/layer_norm.h"
#include "megalith/nn/vocab_parallel_cross_entropy.h"

namespace megalith::nn {

/// The end of a language model: final norm, logits against the (tied) token table, loss.
/// x [T, H] -> logits [T, V/tp] -> loss [T]. Backward all-reduces T*H elements over tp.
class LmHead {
 public:
  struct Saved {
    LayerNorm::Saved norm;
    VocabParallelCrossEntropy::Saved loss;
    Tensor normed;  ///< [T, H]
  };
  LmHead(const VocabShard& vocab, const comm::Group& tp, LayerNorm norm, Param& table)
      : tp_(tp), norm_(std::move(norm)), table_(table), cross_entropy_(vocab, tp) {}

  /// This rank's logits [T, V/tp]; padding columns hold whatever their zero rows give.
  Tensor logits(Exec& ex, const Tensor& x, Saved& saved) const;
  /// loss [T]; adds its sum to loss_sum [1] f64.
  Tensor forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& targets, const Tensor& loss_sum,
                 Saved& saved) const;
  /// dx [T, H] is written; adds to the gradients of table and norm.
  void backward(Exec& ex, const Microbatch& microbatch, const Tensor& targets, const Saved& saved,
                const Tensor& dx) const;

 private:
  comm::Group tp_;
  LayerNorm norm_;
  Param& table_;  // [V/tp, H]
  VocabParallelCrossEntropy cross_entropy_;
};

}  // namespace megalith::nn
