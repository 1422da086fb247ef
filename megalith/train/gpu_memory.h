#pragma once
#include <array>
#include <span>
#include <string>

#include "megalith/comm/world.h"
#include "megalith/train/recompute_choices.h"

namespace megalith::train {

/// The owner of the memory that libraries take when they start.
inline constexpr const char* kWorkspaceOwner = "library workspace";

/// One rank's need of GPU memory.
struct GpuShare {
  Index needed = 0;
  Index left = 0;                     ///< on its GPU, before it takes that
  std::array<char, 512> owners = {};  ///< text: the owners of the bytes
};

/// Throws ConfigError if a rank would take more memory than its GPU has left. Names the first such rank, the owners of
/// its memory and settings that need less. `recompute`: the text of recompute_that_fits().
void require_gpu_memory(std::span<const GpuShare> ranks, const config::RunPlan& plan,
                        const std::string& recompute = {});
/// The same for ranks on GPUs. Each is about to take `bytes`, except the workspace of libraries, which it has taken.
/// `planned`: with other plans. Throws on all ranks or on none. Collective.
void require_gpu_memory(comm::World& world, const config::RunPlan& plan, const BytesByOwner& bytes,
                        const PlannedBytes& planned);

}  // namespace megalith::train
