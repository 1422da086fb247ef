#pragma once
#include <string>
#include <vector>

#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// RMS norms of q and k between the first GEMM of attention and the rotation: over each head, with one gain for all of
/// q and one for all of k; or over all heads of q and of k, with a gain for each of their numbers. Over all heads two
/// all-reduces of [T, 2] add up the squares of tensor-parallel ranks, one forward and one backward.
class QkNormLayer {
 public:
  struct Saved {
    Tensor normed;      ///< q, k, v [T, (A + 2G) D/tp]
    Tensor statistics;  ///< rstd [T, (A + G)/tp] of heads, or sums of squares [T, 2]
  };
  /// Appends the parameters `name`.q_norm.weight and `name`.k_norm.weight.
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const AttentionSpec& spec,
                      const comm::Group& tp);
  QkNormLayer(const std::string& name, const AttentionSpec& spec, comm::Group tp, ParamSet& params);

  /// Norms the rows of the sub-microbatch. qkv [T, (A + 2G) D/tp] stays until backward.
  void forward(Exec& ex, const SubBatch& sub_batch, const Tensor& qkv, Saved& saved) const;
  /// grad: of the normed q, k, v, overwritten by that of qkv. Adds to the gradients of the gains.
  void backward(Exec& ex, const Tensor& qkv, const Saved& saved, const Tensor& grad) const;

 private:
  void sum_over_tp(Exec& ex, const Tensor& sums) const;

  QkNorm kind_;
  double eps_;
  comm::Group tp_;
  Index heads_, kv_heads_, all_heads_, all_kv_heads_;
  Param *q_, *k_;
};

}  // namespace megalith::nn
