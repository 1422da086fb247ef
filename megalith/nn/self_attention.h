#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megalith/nn/qk_norm.h"
#include "megalith/nn/sublayer_spec.h"
#include "megalith/ops/rope.h"

namespace megalith::nn {

/// Causal self-attention with the heads split over `tp`: rank i computes heads [i A/tp, (i+1) A/tp) of A and as large a
/// share of the G kv heads, so scores, softmax, dropout and the weighted sum are local. The fused weight
/// [(A + 2G) D, H] holds the q of the A/G heads of group 0, then its k, then its v, then those of group 1, ...: a shard
/// is one box. x [O, H] -> y [O, H], before the output bias; O rows of T as in linear.h.
/// Sources: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Ainslie et al. 2023, arXiv:2305.13245 (groups).
class SelfAttention final : public TensorParallelSublayer {
 public:
  /// Its first.y is q, k and v [T, (A + 2G) D/tp]; these or, where q and k are normed, qk_norm.normed are rotated in
  /// place where positions are rotations. Its last.x is the attention's output [T, A D/tp].
  struct Saved : TensorParallelSublayer::Saved {
    QkNormLayer::Saved qk_norm;  ///< where q and k are normed
    Tensor log_sum_exp;          ///< [B, A/tp, S]
    KvCache cache;               ///< decoding only
  };
  /// Appends the parameters `name`.qkv.* and `name`.out.*. Throws ConfigError E_HEADS_NOT_DIVISIBLE.
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const AttentionSpec& spec,
                      const StreamSpec& stream, const comm::Group& tp);
  SelfAttention(const std::string& name, const AttentionSpec& spec, const SublayerOptions& options,
                const TensorParallel& tp, ParamSet& params);
  std::unique_ptr<Sublayer::Saved> make_saved() const override { return std::make_unique<Saved>(); }
  void take_cache(const TakeKvCache& take, Sublayer::Saved& saved) const override {
    static_cast<Saved&>(saved).cache = take(kv_heads_, head_dim_);
  }

 private:
  using Base = TensorParallelSublayer;
  void first_gemm(Exec& ex, const Microbatch& microbatch, Base::Saved& saved) const override;
  void local_work(Exec& ex, const Microbatch& microbatch, Base::Saved& saved) const override;
  FirstGrad backward_to_first(Exec& ex, const Microbatch& microbatch, Base::Saved& saved) const override;

  /// Turns q and k of the sub-microbatch's rows by their positions, or gradients back.
  void rotate(Exec& ex, const Microbatch& microbatch, const Tensor& qkv, ops::RopeDirection direction) const;
  void attend(Exec& ex, const Microbatch& microbatch, Saved& kept) const;
  /// The same over the cache, to which the rows were added.
  void decode(Exec& ex, const Microbatch& microbatch, Saved& kept) const;
  /// What attention reads.
  const Tensor& qkv_of(const Saved& kept) const { return qk_norm_ ? kept.qk_norm.normed : kept.first.y; }

  Index heads_, kv_heads_, head_dim_, first_head_, global_heads_;
  PositionKind position_;
  std::optional<QkNormLayer> qk_norm_;
  DropoutSite dropout_;
  bool again_;  // whether backward recomputes its output
};

}  // namespace megalith::nn
