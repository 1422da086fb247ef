#pragma once
#include <optional>
#include <string>

#include "megalith/capture/memory_copy.h"
#include "megalith/comm/world.h"

namespace megalith::train {

/// What each rank has found to differ between a run from graphs and an eager one: throws InternalError, the same on
/// all, that names what a step writes first of it all and the rank that has it. Returns where no rank has found
/// anything. `what`: of the run ("step 6"). Collective.
void refuse_differences(comm::World& world, const std::string& what,
                        const std::optional<capture::MemoryCopy::Difference>& mine);

}  // namespace megalith::train
