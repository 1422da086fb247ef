#include "megalith/optim/optim_config.h"

#include <algorithm>
#include <cmath>

namespace megalith::optim {

void check(const OptimConfig& c, Problems& out) {
  const bool lr_is_good = c.lr > 0 && std::isfinite(c.lr);
  out.require(lr_is_good, "optimizer.lr", c.lr, "must be positive");
  out.require(c.min_lr >= 0 && (c.min_lr <= c.lr || !lr_is_good), "optimizer.min_lr", c.min_lr,
              str("must be in [0, optimizer.lr = ", c.lr, "]"));
  out.require(c.warmup_steps >= 0, "optimizer.warmup_steps", c.warmup_steps, "must not be negative");
  out.require(c.decay == DecayCurve::constant || c.decay_steps > c.warmup_steps, "optimizer.decay_steps", c.decay_steps,
              str("must exceed optimizer.warmup_steps = ", c.warmup_steps));
  out.require(c.weight_decay >= 0 && std::isfinite(c.weight_decay), "optimizer.weight_decay", c.weight_decay,
              "must not be negative");
  out.require(c.beta1 >= 0 && c.beta1 < 1, "optimizer.beta1", c.beta1, "must be in [0, 1)");
  out.require(c.beta2 >= 0 && c.beta2 < 1, "optimizer.beta2", c.beta2, "must be in [0, 1)");
  out.require(c.eps > 0 && std::isfinite(c.eps), "optimizer.eps", c.eps, "must be positive");
  out.require(c.clip >= 0 && std::isfinite(c.clip), "optimizer.clip", c.clip, "must not be negative (0: no clipping)");
}

double learning_rate(const OptimConfig& c, Index update) {
  const auto i = static_cast<double>(update);
  const auto warmup = static_cast<double>(c.warmup_steps), end = static_cast<double>(c.decay_steps);
  if (update <= c.warmup_steps && c.warmup_steps > 0) return c.lr * i / warmup;
  if (c.decay == DecayCurve::constant) return c.lr;
  if (update >= c.decay_steps) return c.min_lr;
  const double progress = (i - warmup) / (end - warmup);
  constexpr double kPi = 3.14159265358979323846;
  const double left = c.decay == DecayCurve::cosine ? 0.5 * (1 + std::cos(kPi * progress)) : 1 - progress;
  return c.min_lr + (c.lr - c.min_lr) * left;
}

double clip_factor(double clip, double norm) { return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0; }

}  // namespace megalith::optim
