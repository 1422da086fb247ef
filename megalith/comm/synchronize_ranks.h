#pragma once
#include "megalith/comm/world.h"
#include "megalith/runtime/exec.h"

namespace megalith::comm {

/// Waits until all ranks have completed all work so far. `when` ("before graphs are captured") is for messages.
/// Collective.
void synchronize_ranks(World& world, Exec& ex, const char* when);

}  // namespace megalith::comm
