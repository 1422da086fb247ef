#pragma once
#include <string>

#include "megalith/comm/world.h"
#include "megalith/train/recompute_choices.h"

namespace megalith::train {

/// The plan with moe.echo.weights chosen where it is automatic: slots of clones keep weights where all hosts have room
/// for them, else weights are sent again for backward. On GPUs, whose free memory is known later, they are kept.
/// Collective.
config::RunPlan with_clone_weights(comm::World& world, config::RunPlan plan);

/// For a run that does not fit and whose slots keep weights: ", or moe.echo.weights = redispatch, which takes N less".
/// Else "". `bytes`: of the rank; `planned`: with other plans.
std::string clone_weights_advice(const config::RunPlan& plan, const BytesByOwner& bytes, const PlannedBytes& planned);

}  // namespace megalith::train
