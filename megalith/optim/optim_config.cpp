#include "megalith/optim/optim_config.h"

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

ops::StepRules step_rules(const OptimConfig& c, const ops::LossScaling& scaling) {
  return {.learning_rate = {.lr = c.lr,
                            .min_lr = c.min_lr,
                            .warmup_steps = c.warmup_steps,
                            .decay_steps = c.decay_steps,
                            .decay = c.decay},
          .scaling = scaling,
          .clip = c.clip};
}

}  // namespace megalith::optim
