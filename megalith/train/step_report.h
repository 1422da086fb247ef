#pragma once
#include "megalith/train/moe_report.h"

namespace megalith::train {

/// The numbers of one step on which the ranks agreed. Code that computes more about a step adds a member with a
/// default.
struct StepReport {
  double loss = 0;           ///< mean over the global batch's targets with a loss, nats; 0 if there are none
  Index targets = 0;         ///< targets with a loss in the global batch
  double grad_norm = 0;      ///< global, unscaled, before clipping
  double learning_rate = 0;  ///< 0 if the step was skipped
  double loss_scale = 1;     ///< of this step
  bool skipped = false;      ///< fp16 only: a gradient overflowed, nothing was updated
  bool stop = false;         ///< some rank was asked to stop
  bool save = false;         ///< some rank requested a save
  MoeReport moe = {};        ///< of models with experts
};

}  // namespace megalith::train
