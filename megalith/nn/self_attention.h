#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megalith/nn/qk_norm.h"
#include "megalith/nn/sublayer_spec.h"
#include "megalith/ops/rope.h"

namespace megalith::nn {

/// The results of SelfAttention.
struct AttentionState : RegionState {
  Tensor qkv;                  ///< [T, (A + 2G) D/tp] q, k and v: the output of the first GEMM
  QkNormLayer::Saved qk_norm;  ///< where q and k are normed
  Tensor output;               ///< [T, A D/tp], of attention
  Tensor log_sum_exp;          ///< [B, A/tp, S]
  Tensor d_output;             ///< [T, A D/tp]
  KvCache cache;               ///< decoding only
};

/// Self-attention with the heads split over `tp`: rank i computes heads [i A/tp, (i+1) A/tp) of A and as large a
/// share of the G kv heads, so scores, softmax, dropout and the weighted sum are local. The fused weight [(A + 2G) D,
/// H] holds the q of the A/G heads of group 0, then its k, then its v, then those of group 1, ...: a shard is one box.
/// Where positions are rotations, qkv (normed, if q and k are) is rotated in place, and brought into
/// ops::attended_order(). x [O, H] -> y [O, H], before the output bias; O rows of T as in linear.h. Sources: Shoeybi et
/// al. 2019, arXiv:1909.08053, section 3; Ainslie et al. 2023, arXiv:2305.13245 (groups).
class SelfAttention final : public TensorParallelSublayer<AttentionState> {
 public:
  /// Appends the parameters `name`.qkv.* and `name`.out.*. Throws ConfigError E_HEADS_NOT_DIVISIBLE.
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const AttentionSpec& spec,
                      const StreamSpec& stream, const comm::Group& tp);
  SelfAttention(const std::string& name, const AttentionSpec& spec, const SublayerOptions& options,
                const TensorParallel& tp, ParamSet& params);
  void take_cache(const TakeKvCache& take, Saved& saved) const override {
    own(saved).cache = take(kv_heads_, head_dim_);
  }

 private:
  void first_gemm(Exec& ex, const Microbatch& microbatch, const Tensor& x, AttentionState& saved,
                  const FirstGemm& pass) const override;
  void local_work(Exec& ex, const Microbatch& microbatch, AttentionState& saved) const override;
  const Tensor& last_input(const AttentionState& saved) const override { return saved.output; }
  void last_input_grad(Exec& ex, const Microbatch& microbatch, AttentionState& saved) const override;
  void local_work_grad(Exec& ex, const Microbatch& microbatch, AttentionState& saved) const override;

  /// Turns q and k of the sub-microbatch's rows by their positions, or gradients back.
  void rotate(Exec& ex, const Microbatch& microbatch, const AttentionState& saved, const Tensor& qkv,
              ops::RopeDirection direction) const;
  /// That in which attention reads the rotated heads.
  ops::QkvOrder order(const Exec& ex, const Microbatch& microbatch, const AttentionState& saved) const;
  void attend(Exec& ex, const Microbatch& microbatch, AttentionState& saved) const;
  /// The same over the cache, to which the rows were added.
  void decode(Exec& ex, const Microbatch& microbatch, AttentionState& saved) const;
  /// What attention reads.
  const Tensor& read_qkv(const AttentionState& saved) const { return qk_norm_ ? saved.qk_norm.normed : saved.qkv; }

  Index heads_, kv_heads_, head_dim_, first_head_, global_heads_;
  PositionKind position_;
  ops::AttentionMask mask_;
  std::optional<QkNormLayer> qk_norm_;
  DropoutSite dropout_;
  bool recomputes_;  // whether backward recomputes its output
};

}  // namespace megalith::nn
