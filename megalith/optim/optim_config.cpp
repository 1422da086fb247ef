#include "megalith/optim/optim_config.h"

#include <algorithm>

namespace megalith::optim {

void check(const OptimConfig& c, Problems& out) {
  out.require(c.min_lr <= c.lr, "optimizer.min_lr", c.min_lr, str("must be at most optimizer.lr = ", c.lr));
  out.require(c.moments != MomentType::bf16 || c.type != OptimizerType::muon, "optimizer.moments", "bf16",
              "does not go with optimizer.type = muon: only AdamW's moments can be bf16; use f32, or adamw");
  out.require(!c.shards_gradients() || c.type != OptimizerType::muon, "optimizer.shard", "gradients",
              "does not go with optimizer.type = muon, which updates whole matrices: use moments, or adamw");
  switch (c.decay) {
    case DecayCurve::constant:
      return;
    case DecayCurve::linear:
    case DecayCurve::cosine:
      out.require(c.decay_steps > c.warmup_steps, "optimizer.decay_steps", c.decay_steps,
                  str("must exceed optimizer.warmup_steps = ", c.warmup_steps));
      return;
    case DecayCurve::wsd:
      out.require(c.run_steps == 0 || c.warmup_steps + c.decay_steps <= c.run_steps,
                  "optimizer.warmup_steps + optimizer.decay_steps", c.warmup_steps + c.decay_steps,
                  str("must be at most train.steps = ", c.run_steps,
                      " with optimizer.decay = wsd: the decay takes the last steps of the run"));
      return;
    case DecayCurve::inverse_sqrt:
      out.require(c.warmup_steps > 0, "optimizer.warmup_steps", c.warmup_steps,
                  "must be at least 1 with optimizer.decay = inverse_sqrt: the rate is lr * sqrt(warmup_steps / step)");
      return;
  }
}

Index default_decay_steps(DecayCurve decay, Index warmup_steps, Index run_steps) {
  constexpr Index kWsdShare = 10;
  return decay == DecayCurve::wsd ? std::max<Index>(1, run_steps / kWsdShare) : std::max(run_steps, warmup_steps + 1);
}

ops::StepRules step_rules(const OptimConfig& c, const ops::LossScaling& scaling) {
  const bool is_wsd = c.decay == DecayCurve::wsd;
  return {.learning_rate = {.lr = c.lr,
                            .min_lr = c.min_lr,
                            .warmup_steps = c.warmup_steps,
                            .decay_begin = is_wsd ? c.run_steps - c.decay_steps : c.warmup_steps,
                            .decay_end = is_wsd ? c.run_steps : c.decay_steps,
                            .decay = c.decay},
          .scaling = scaling,
          .clip = c.clip};
}

std::string curve_text(const OptimConfig& c) {
  const ops::LearningRate rate = step_rules(c, {}).learning_rate;
  std::string text = c.warmup_steps > 0 ? str("0 to ", c.lr, " in ", c.warmup_steps, " steps") : str(c.lr);
  if (c.decay == DecayCurve::constant) return text + ", stays";
  if (c.decay == DecayCurve::inverse_sqrt)
    return text + str(", then ", c.lr, " * sqrt(", c.warmup_steps, " / step), at least ", c.min_lr);
  if (rate.decay_begin > c.warmup_steps) text += str(", stays to step ", rate.decay_begin);
  return text + str(", then on a ", c.decay == DecayCurve::cosine ? "cosine" : "line", " to ", c.min_lr, " at step ",
                    rate.decay_end);
}

}  // namespace megalith::optim
