#pragma once
#include "megalith/base/types.h"

namespace megalith::train {

/// What the ranks agreed on about one step. Whoever computes more about a step adds a member with its default.
struct StepReport {
  double loss = 0;           ///< mean over the global batch's targets that have one, nats; 0 where none has
  Index targets = 0;         ///< of the global batch, those with a loss
  double grad_norm = 0;      ///< global, unscaled, before clipping
  double learning_rate = 0;  ///< 0 when the step was skipped
  double loss_scale = 1;     ///< of this step
  bool skipped = false;      ///< fp16 only: a gradient overflowed, nothing was updated
  bool stop = false;         ///< some rank was asked to stop
  bool save = false;         ///< some rank asked for a save
};

}  // namespace megalith::train
