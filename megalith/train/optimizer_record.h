#pragma once
#include <string>

#include "megalith/checkpoint/manifest.h"
#include "megalith/ops/step_end.h"

namespace megalith::train {

// What a checkpoint keeps of the optimizer in addition to its moments.

/// Adds it: the loss scale only with loss scaling, the row of skipped steps and the means of train.spike_* only if they
/// are not 0.
void add_optimizer_state(checkpoint::RunState& state, const ops::OptimizerState& optimizer,
                         const ops::LossScaling& scaling);
/// Takes it from a checkpoint. Throws InputError if a number is missing, or a count negative.
void take_optimizer_state(const checkpoint::RunState& saved, const ops::LossScaling& scaling,
                          ops::OptimizerState& optimizer);

/// A number that a checkpoint keeps. Throws InputError if it is missing or, of a count, negative.
Index count_of(const checkpoint::RunState& saved, const std::string& name);
double real_of(const checkpoint::RunState& saved, const std::string& name);

}  // namespace megalith::train
