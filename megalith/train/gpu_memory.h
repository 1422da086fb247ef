#pragma once
#include "megalith/config/run_plan.h"
#include "megalith/tensor/memory.h"

namespace megalith::train {

/// What one call of the deterministic attention's backward pass keeps apart on a GPU, where a plan's attention has such
/// a pass: 2 bytes for every query and key of a rank's heads. 0 elsewhere.
Index apart_sums_bytes(const config::RunPlan& plan);

/// Throws ConfigError when a rank would take more of its GPU than the `left` bytes that are free; names what takes them
/// and what takes less.
void require_gpu_memory(const config::RunPlan& plan, const BytesByOwner& to_take, Index left);

}  // namespace megalith::train
