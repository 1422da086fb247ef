#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/nn/moe/expert_parallel.h"
#include "megalith/nn/moe/moe_step.h"
#include "megalith/nn/sublayer_spec.h"
#include "megalith/ops/router_losses.h"

namespace megalith::nn {

/// What rules keep for a router: parameters of these names in every MoE layer. A run that resumes may keep others than
/// the run that saved: its losses need others.
struct RouterState {
  std::string_view name_end;
  const char* text;
  bool is_kept = false;
};
std::array<RouterState, 2> router_states(const MoeConfig& config);

/// Chooses K of E experts for each row and weighs them: logits [n, E] = x W^T, in f32 whatever x is (f64 for f64). In
/// training, drops pairs above a capacity, and adds the load loss and the z-loss of the layer to MoeStep::totals and
/// their gradients to the logits'. Belongs to the dense grid.
/// Communication: with a load loss of a microbatch or of sequences whose rows are shared out over tp, an all-reduce of
/// E numbers a run over tp; where rows are replicated over tp, one of n K numbers in backward.
class Router {
 public:
  struct Saved {
    Tensor x;                      ///< [n, H], alive until backward has read it
    Tensor logits, probabilities;  ///< [n, E]
    Tensor experts;                ///< [n, K] i32
    Tensor kept;                   ///< [n, K] i32: experts, or -1 where a pair was dropped
    Tensor weights;                ///< [n, K]
    Tensor stays;                  ///< [n, K], like weights; of replayed decisions 1, or 0 of a dropped pair
    Tensor counts;                 ///< [Q, E] i64, of the runs of the load loss
  };
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec,
                      const StreamSpec& stream, const ExpertParallel& experts);
  Router(const std::string& name, const MoeSpec& spec, const LayerGroups& groups, ParamSet& params);

  /// From saved.x, the rows that this rank brings into dispatch.
  void forward(Exec& ex, const Microbatch& microbatch, Saved& saved) const;
  /// d_weights [n, K] of this rank's slices; adds to the weight's gradient and to dx [n, H].
  void backward(Exec& ex, const Microbatch& microbatch, const Tensor& d_weights, const Tensor& dx,
                const Saved& saved) const;
  /// The bias that balances without a loss, and the shares of the step before; null: none.
  Param* bias() const { return bias_; }
  Param* shares() const { return shares_; }
  Index layer() const { return layer_; }

 private:
  struct Runs {
    ops::TokenRuns runs;
    Index count = 1;   ///< Q
    Index tokens = 0;  ///< of a run
  };
  Runs runs_of(const Microbatch& microbatch) const;
  ops::LoadLossFactors factors(const Runs& runs) const;
  bool shares_rows() const {
    return groups_.tp.group().size() > 1 && groups_.experts->rows() != DispatchRows::replicated;
  }
  bool is_even(const Microbatch& microbatch) const {
    return config_.force_balance || (microbatch.moe != nullptr && microbatch.moe->routing == Routing::even);
  }
  /// Whether decisions of another run are repeated: saved.experts and saved.stays are theirs.
  bool replays(const Microbatch& microbatch) const {
    return !config_.replay.empty() && microbatch.mode == Mode::train && !is_even(microbatch);
  }
  /// Whether totals and records have these rows: once, though passes are repeated and ranks have the same rows.
  bool counts(const Microbatch& microbatch) const {
    return microbatch.pass == ForwardPass::first && groups_.experts->counts_rows();
  }
  RoutedRows rows_of(const Microbatch& microbatch) const;
  void choose(Exec& ex, const Microbatch& microbatch, const Runs& runs, Saved& saved) const;
  void add_losses(Exec& ex, const Microbatch& microbatch, const Runs& runs, Saved& saved) const;
  void drop(Exec& ex, const Microbatch& microbatch, Saved& saved) const;
  /// The gradient of the load loss with respect to p, or undefined.
  Tensor load_loss_grad(Exec& ex, const Microbatch& microbatch, const Saved& saved) const;

  MoeConfig config_;
  Index capacity_run_;
  Index layer_;  // among the MoE layers of the model
  LayerGroups groups_;
  Param& weight_;
  Param *bias_, *shares_;
};

}  // namespace megalith::nn
