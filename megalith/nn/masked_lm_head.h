#pragma once
#include "megalith/nn/head.h"
#include "megalith/nn/layer_kinds.h"
#include "megalith/nn/norm.h"
#include "megalith/nn/replicated_linear.h"
#include "megalith/nn/sublayer_spec.h"
#include "megalith/nn/vocab_parallel_cross_entropy.h"

namespace megalith::nn {

/// The vocabulary's bias [V/tp]: rows of padding stay 0 and are not saved, as those of token_table().
ParamSpec vocabulary_bias(std::string name, const VocabShard& vocab);

/// The loss of masked tokens, from their N rows of the stream, which every rank of `tp` has:
///   logits = norm(gelu(x W^T + b)) E^T + c,  E [V/tp, H] the token table, c [V/tp].
/// The dense layer and the norm are whole on each rank. The logits are split by the vocabulary; backward sums the
/// gradient of their input over tp, N H elements. Source: Devlin et al. 2019, arXiv:1810.04805, section 3.1, with the
/// layers of its code.
class MaskedLmHead {
 public:
  struct Spec {
    std::string name;  ///< prefix of its parameters: name.dense.*, name.norm.*, name.bias
    NormKind norm = NormKind::layer;
    double norm_eps = 1e-5;
    ops::GeluForm gelu = ops::GeluForm::tanh;
  };
  struct Saved {
    Tensor x, z;       ///< [N, H]: input, the dense layer's result with its bias
    Norm::Saved norm;  ///< its x is gelu(z)
    VocabParallelCrossEntropy::Saved loss;
  };

  static void declare(std::vector<ParamSpec>& specs, const Spec& spec, const VocabShard& vocab,
                      const StreamSpec& stream, const comm::Group& tp);
  MaskedLmHead(const Spec& spec, const VocabShard& vocab, const comm::Group& tp, ParamSet& params, Param& table);

  /// This rank's logits [N, V/tp]; those of padding columns are products with their zero rows.
  Tensor logits(Exec& ex, const Tensor& x, Saved& saved) const;
  /// targets [N] i32 or -1. Returns the loss of each [N], and adds their sum to loss_sum [1] f64.
  Tensor forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& targets, const Tensor& loss_sum,
                 Saved& saved) const;
  /// Overwrites losses and best_ids of the results, where they are defined. loss_sum [1] f64: work space.
  void infer(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& targets, const Tensor& loss_sum,
             const HeadResults& results) const;
  /// Overwrites dx [N, H], the same on all ranks of tp. Adds to the gradients of all parameters.
  void backward(Exec& ex, const Microbatch& microbatch, const Tensor& targets, const Saved& saved,
                const Tensor& dx) const;

 private:
  VocabShard vocab_;
  comm::Group tp_;
  ops::GeluForm gelu_;
  ReplicatedLinear dense_;
  Norm norm_;
  Param& table_;  // [V/tp, H]
  Param& bias_;   // [V/tp]
  VocabParallelCrossEntropy cross_entropy_;
};

}  // namespace megalith::nn
