#pragma once
#include <cstdint>
#include <string>

#include "megalith/base/problems.h"
#include "megalith/base/types.h"

namespace megalith::optim {

enum class DecayCurve : std::uint8_t { constant, linear, cosine };

/// [optimizer] of a recipe, resolved.
struct OptimConfig {
  double lr = 1e-3, min_lr = 0;
  Index warmup_steps = 0;
  DecayCurve decay = DecayCurve::cosine;
  Index decay_steps = 0;  ///< step at which min_lr is reached, warm-up included
  double weight_decay = 0.01;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double clip = 1.0;  ///< of the global gradient norm; 0: no clipping
};

/// Ranges of every field, under the keys of the recipe.
void check(const OptimConfig& config, Problems& out);

/// The rate of the i-th update, i counted from 1: lr i/W during warm-up, then from lr to min_lr at decay_steps (half a
/// cosine or a line), then min_lr; `constant` stays at lr. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 4.
double learning_rate(const OptimConfig& config, Index update);

/// min(1, clip / (norm + 1e-6)); 1 without clipping.
double clip_factor(double clip, double norm);

}  // namespace megalith::optim
