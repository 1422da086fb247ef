#pragma once
#include "megalith/comm/group.h"
#include "megalith/nn/vocab_parallel_embedding.h"

namespace megalith::nn {

/// Cross entropy over a vocabulary split across `tp`; the logits are never gathered.
///   loss[t] = log(sum_v exp(z[t,v])) - z[t, target[t]]        (nats)
/// Padding ids count as -inf. Communicates T elements (max) and then 2T (sum, target logit).
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
class VocabParallelCrossEntropy {
 public:
  struct Saved {
    Tensor logits;  ///< [T, V/tp]; after forward d(loss)/d(logits) * loss_scale over one rank, else exp(z - max)
    Tensor sums;    ///< [2, T]; undefined over one rank
  };
  VocabParallelCrossEntropy(const VocabShard& vocab, comm::Group tp) : vocab_(vocab), tp_(std::move(tp)) {}

  /// Takes over the memory of the logits. Returns loss [T], the same on every tp rank, 0 where a target is -1, and adds
  /// its sum to loss_sum [1] f64. targets [T] i32, global ids or -1.
  Tensor forward(Exec& ex, const Microbatch& microbatch, const Tensor& logits, const Tensor& targets,
                 const Tensor& loss_sum, Saved& saved) const;
  /// Turns saved.logits into d(loss)/d(logits) * loss_scale, in place, and returns it. No communication.
  Tensor backward(Exec& ex, const Microbatch& microbatch, const Tensor& targets, const Saved& saved) const;

 private:
  VocabShard vocab_;
  comm::Group tp_;
};

}  // namespace megalith::nn
