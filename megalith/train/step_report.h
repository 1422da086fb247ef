#pragma once

namespace megalith::train {

/// What the ranks agreed on about one step. Whoever computes more about a step adds a member with its default.
struct StepReport {
  double loss = 0;           ///< mean over the tokens of the global batch, nats
  double grad_norm = 0;      ///< global, unscaled, before clipping
  double learning_rate = 0;  ///< 0 when the step was skipped
  double loss_scale = 1;     ///< of this step
  bool skipped = false;      ///< fp16 only: a gradient overflowed, nothing was updated
  bool stop = false;         ///< some rank was asked to stop
  bool save = false;         ///< some rank asked for a save
};

}  // namespace megalith::train
