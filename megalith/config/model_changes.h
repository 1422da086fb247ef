#pragma once
#include <string>
#include <vector>

#include "megalith/config/run_plan.h"

namespace megalith::config {

/// How the model of a run differs from that of a checkpoint whose values it takes (train.init).
struct ModelChanges {
  std::vector<std::string> refused;  ///< "moe.top_k = 1: the checkpoint's model has 2"
  std::vector<std::string> taken;    ///< of rotated positions: "model.seq_len = 64: the checkpoint's model has 16"
};
/// Compares resolved values: a key that is not set and one that is set to its default are the same, as are different
/// keys of one meaning. Losses and capacities of experts, and dropout, are not part of the model.
ModelChanges model_changes(const RunPlan& saved, const RunPlan& plan);

}  // namespace megalith::config
