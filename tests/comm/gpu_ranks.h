#pragma once
#include <functional>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// Runs `body` as `host`'s rank of an NCCL world, on the GPU that is this rank's.
void run_gpu_rank(World& host, const std::function<void(World&)>& body, const WorldOptions& options = {});
/// The same on `size` threads of this process (run_ranks). `options` are those of the NCCL world.
void run_gpu_ranks(int size, const std::function<void(World&)>& body, const WorldOptions& options = {});

}  // namespace megalith::comm
