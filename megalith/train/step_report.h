#pragma once
#include <string_view>
#include <vector>

#include "megalith/train/moe_report.h"

namespace megalith::train {

/// The mean of a loss over its terms in the global batch; 0 if there are none.
struct LossMean {
  std::string_view name;  ///< nn::LossSpec::name
  double mean = 0;
  Index count = 0;
};

/// The numbers of one step on which the ranks agreed. Code that computes more about a step adds a member with a
/// default.
struct StepReport {
  double loss = 0;  ///< weighted sum of the means of `losses`, nats
  std::vector<LossMean> losses = {};
  double grad_norm = 0;      ///< global, unscaled, before clipping
  double learning_rate = 0;  ///< 0 if the step was skipped
  double loss_scale = 1;     ///< of this step
  bool skipped = false;      ///< fp16 only: a gradient overflowed, nothing was updated
  bool stop = false;         ///< some rank was asked to stop
  bool save = false;         ///< some rank requested a save
  MoeReport moe = {};        ///< of models with experts
};

}  // namespace megalith::train
