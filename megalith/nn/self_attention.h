#pragma once
#include <string>
#include <vector>

#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// Causal self-attention with the heads split over `tp`. Rank i computes heads [i A/tp, (i+1) A/tp), so scores,
/// softmax, dropout and the weighted sum are local. The fused weight holds q, k, v of head 0, then of head 1, and so
/// on: a reshard is a slice. x [O, H] -> y [O, H], before the output bias. O rows of T as in linear.h.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
class SelfAttention final : public TensorParallelSublayer {
 public:
  /// Its first.y is q, k and v [T, 3H/tp]; its last.x is the output of attention [T, H/tp].
  struct Saved : TensorParallelSublayer::Saved {
    Tensor log_sum_exp;  ///< [B, A/tp, S]
  };
  /// Appends the parameters `name`.qkv.* and `name`.out.*. Throws ConfigError E_HEADS_NOT_DIVISIBLE.
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const AttentionSpec& spec,
                      const StreamSpec& stream, const comm::Group& tp);
  SelfAttention(const std::string& name, const AttentionSpec& spec, const SublayerOptions& options,
                const TensorParallel& tp, ParamSet& params);
  std::unique_ptr<Sublayer::Saved> make_saved() const override { return std::make_unique<Saved>(); }

 private:
  using Base = TensorParallelSublayer;
  void first_gemm(Exec& ex, const Microbatch& microbatch, Base::Saved& saved) const override;
  void local_work(Exec& ex, const Microbatch& microbatch, Base::Saved& saved) const override;
  void backward_through(Exec& ex, const Microbatch& microbatch, const Tensor& dx, Base::Saved& saved) const override;

  Index heads_, head_dim_, first_head_, global_heads_;
  DropoutSite dropout_;
  bool again_;  // whether backward recomputes its output
};

}  // namespace megalith::nn
