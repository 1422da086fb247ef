#pragma once
#include "megalith/train/engine.h"
#include "megalith/train/host_staging.h"

namespace megalith::train {

/// Compares the values of parameters that several model copies hold (over dp and cp, experts over edp), by a checksum
/// per parameter. Throws CollectiveError on all ranks if they differ: it names the first parameter, and the ranks whose
/// values are not those of most ranks. Parameters whose optimizer is sharded have no replicas between two steps, and
/// are left out. No step may be in flight. Reads all values once. Collective: an all-gather of 24 bytes and, if
/// replicas differ, messages to rank 0.
void require_equal_replicas(Engine& engine, HostStaging& staging);

}  // namespace megalith::train
