#include "megalith/optim/optim_config.h"

namespace megalith::optim {

void check(const OptimConfig& c, Problems& out) {
  out.require(c.min_lr <= c.lr, "optimizer.min_lr", c.min_lr, str("must be at most optimizer.lr = ", c.lr));
  out.require(c.decay == DecayCurve::constant || c.decay_steps > c.warmup_steps, "optimizer.decay_steps", c.decay_steps,
              str("must exceed optimizer.warmup_steps = ", c.warmup_steps));
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
