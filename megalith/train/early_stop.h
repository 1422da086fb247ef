#pragma once
#include <optional>
#include <string>

#include "megalith/config/run_plan.h"

namespace megalith::train {

/// The evaluations of a run with train.early_stop. A part of its state: checkpoints have it, so a run that is resumed
/// counts as an uninterrupted one does.
struct HeldOutRecord {
  Index best_step = 0;
  double best_loss = 0;  ///< nats; finite
  Index without = 0;     ///< evaluations since the best one
  Index last_step = 0;   ///< of the last evaluation
};

/// Adds the evaluation of a step. A loss that is below the best one by more than `delta` becomes the best. A loss that
/// is not finite never does, and begins no record.
void add_evaluation(std::optional<HeldOutRecord>& record, Index step, double loss, double delta);

/// Whether the run ends after its last evaluation: train.early_stop of them have brought no better loss.
bool stops_early(const config::TrainConfig& config, const std::optional<HeldOutRecord>& record);

/// "the held-out loss has not fallen in 3 evaluations; the best was 1.25 at step 40".
std::string early_stop_text(const HeldOutRecord& record);

}  // namespace megalith::train
