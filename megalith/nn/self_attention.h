#pragma once
#include <string>
#include <vector>

#include "megalith/nn/block_config.h"
#include "megalith/nn/linear.h"
#include "megalith/nn/microbatch.h"

namespace megalith::nn {

/// Causal self-attention with the heads split over `tp`: rank i computes heads [i A/tp, (i+1) A/tp), so scores,
/// softmax, dropout and the weighted sum are local. The fused weight holds q, k, v of head 0, then of head 1, ...:
/// resharding it is a slice. x [O, H] -> y [O, H], before the output bias; O rows of T as in linear.h. One region of
/// TensorParallel. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
class SelfAttention {
 public:
  struct Saved {
    ColumnParallelLinear::Saved qkv;  ///< its y is [T, 3H/tp]
    RowParallelLinear::Saved out;     ///< its x is the attention's output [T, H/tp], its y the result
    Tensor log_sum_exp;               ///< [B, A/tp, S]
  };
  /// Appends the parameters `name`.qkv.* and `name`.out.*. Throws ConfigError E_HEADS_NOT_DIVISIBLE.
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const BlockConfig& config,
                      const comm::Group& tp);
  SelfAttention(const std::string& name, const BlockConfig& config, const TensorParallel& tp, ParamBuffer& params,
                std::uint32_t site);

  // Forward, in three steps: work() is the first product, leave() attention and the second one. Wait for what a step
  // returns before the part's next one.
  InFlight enter(Exec& ex, const Tensor& x, Saved& saved, const Part& part) const {
    return qkv_.enter(ex, x, saved.qkv, part);
  }
  void work(Exec& ex, Saved& saved, const Part& part) const { qkv_.forward(ex, saved.qkv, part); }
  InFlight leave(Exec& ex, const Microbatch& microbatch, Saved& saved) const;

  // Backward, in three steps as Mlp's: dy [O, H] -> dx [O, H].
  [[nodiscard]] EnteredBackward enter_backward(Exec& ex, const SummedGrad& dy, const Saved& saved) const {
    return {out_.enter_backward(ex, dy.grad), qkv_.enter_backward(ex, saved.qkv), static_cast<bool>(dy.row_sums)};
  }
  void backward(Exec& ex, const Microbatch& microbatch, EnteredBackward& entered, const Saved& saved,
                const Tensor& dx) const;
  void finish_backward(Exec& ex, const Microbatch& microbatch, const EnteredBackward& entered,
                       const Saved& saved) const;
  const Tensor& out_bias() const { return out_.bias(); }
  const Tensor& out_bias_grad() const { return out_.bias_grad(); }

 private:
  Index heads_, head_dim_, first_head_, global_heads_;
  ColumnParallelLinear qkv_;
  RowParallelLinear out_;
  DropoutSite dropout_;
};

}  // namespace megalith::nn
