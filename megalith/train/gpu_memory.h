#pragma once
#include <array>
#include <span>
#include <string>

#include "megalith/comm/world.h"
#include "megalith/config/run_plan.h"
#include "megalith/tensor/memory.h"

namespace megalith::train {

/// One rank's part of what a run wants of GPUs.
struct GpuShare {
  Index needed = 0;
  Index left = 0;                     ///< of its GPU, before it takes that
  std::array<char, 512> owners = {};  ///< text: whose bytes they are
};

/// Throws ConfigError when a rank would take more of its GPU than is left there: names the first one, what takes its
/// memory and what would take less. `recompute`: what recompute_that_fits() says.
void require_gpu_memory(std::span<const GpuShare> ranks, const config::RunPlan& plan,
                        const std::string& recompute = {});
/// The same for ranks on GPUs, each of which is about to take `to_take`. Throws on all ranks or on none. Collective.
void require_gpu_memory(comm::World& world, const config::RunPlan& plan, const BytesByOwner& to_take);

}  // namespace megalith::train
