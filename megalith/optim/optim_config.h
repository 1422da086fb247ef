#pragma once
#include <string>

#include "megalith/base/problems.h"
#include "megalith/base/types.h"
#include "megalith/ops/step_end.h"
#include "megalith/params/partition.h"

namespace megalith::optim {

using ops::DecayCurve;

/// What updates a parameter. `muon`: the matrices of layers by Muon, all else by AdamW.
enum class OptimizerType : std::uint8_t { adamw, muon };
/// By what an orthogonalised update of a matrix [R, C] is multiplied. `match_rms_adamw`: 0.2 sqrt(max(R, C)), so that
/// its root mean square is that of AdamW's updates, and one rate fits both (Liu et al. 2025, arXiv:2502.16982, section
/// 2.2). `original`: sqrt(max(1, R / C)) (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon).
enum class MuonScale : std::uint8_t { match_rms_adamw, original };

/// How AdamW's moments are stored. `f32`: as the masters (f64 in fp64). `bf16`: rounded stochastically, so that a small
/// change of a moment is not lost: the expectation of what is stored is the exact moment (ops/moment_rounding.h).
enum class MomentType : std::uint8_t { f32, bf16 };

/// Section [optimizer] of a recipe, resolved.
struct OptimConfig {
  double lr = 1e-3, min_lr = 0;
  Index warmup_steps = 0;
  DecayCurve decay = DecayCurve::cosine;
  /// `cosine`, `linear`: step at which min_lr is reached, warm-up included. `wsd`: steps of the decay, the last ones of
  /// the run. Others do not read it.
  Index decay_steps = 0;
  Index run_steps = 0;  ///< train.steps; 0: nothing is trained
  double weight_decay = 0.01;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  MomentType moments = MomentType::f32;
  OptimizerType type = OptimizerType::adamw;
  double muon_momentum = 0.95;
  MuonScale muon_scale = MuonScale::match_rms_adamw;
  double clip = 1.0;                   ///< of the global gradient norm; 0: no clipping
  Sharding sharding = Sharding::none;  ///< recipe: `distributed`
  ShardedState shard = ShardedState::moments;
  bool shards_gradients() const { return sharding == Sharding::optimizer && shard == ShardedState::gradients; }
};

/// Rules over several members, under the keys of the recipe.
void check(const OptimConfig& config, Problems& out);

/// Whether a curve depends on decay_steps.
constexpr bool reads_decay_steps(DecayCurve decay) {
  return decay != DecayCurve::constant && decay != DecayCurve::inverse_sqrt;
}
/// The default of decay_steps: the end of the run, or of `wsd` a tenth of the steps, at least 1 (Hu et al. 2024,
/// arXiv:2404.06395, section 4.2).
Index default_decay_steps(DecayCurve decay, Index warmup_steps, Index run_steps);

/// "0 to 0.001 in 100 steps, stays to step 900, then on a line to 0.0001 at step 1000".
std::string curve_text(const OptimConfig& config);

/// The same in the form that the end of a step uses.
ops::StepRules step_rules(const OptimConfig& config, const ops::LossScaling& scaling);

}  // namespace megalith::optim
