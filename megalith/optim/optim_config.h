#pragma once
#include <string>

#include "megalith/base/problems.h"
#include "megalith/base/types.h"
#include "megalith/ops/step_end.h"
#include "megalith/params/partition.h"

namespace megalith::optim {

using ops::DecayCurve;

/// Section [optimizer] of a recipe, resolved.
struct OptimConfig {
  double lr = 1e-3, min_lr = 0;
  Index warmup_steps = 0;
  DecayCurve decay = DecayCurve::cosine;
  Index decay_steps = 0;  ///< step at which min_lr is reached, warm-up included
  double weight_decay = 0.01;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double clip = 1.0;                   ///< of the global gradient norm; 0: no clipping
  Sharding sharding = Sharding::none;  ///< recipe: `distributed`
};

/// Rules over several members, under the keys of the recipe.
void check(const OptimConfig& config, Problems& out);

/// The same in the form that the end of a step uses.
ops::StepRules step_rules(const OptimConfig& config, const ops::LossScaling& scaling);

}  // namespace megalith::optim
