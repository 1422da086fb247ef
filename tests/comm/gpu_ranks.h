#pragma once
#include <functional>
#include <string>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// Runs `body` as `host`'s rank of an NCCL world, on the GPU that is this rank's.
void run_gpu_rank(World& host, const std::function<void(World&)>& body, const WorldOptions& options = {});
/// The same on `size` threads of this process (run_ranks), or as one of the processes of use_processes(). `options` are
/// those of the NCCL world.
void run_gpu_ranks(int size, const std::function<void(World&)>& body, const WorldOptions& options);
inline void run_gpu_ranks(int size, const std::function<void(World&)>& body) { run_gpu_ranks(size, body, {}); }

/// From here on run_gpu_ranks() runs ranks as the processes of `host`, of which this is one: all of them run the same
/// tests. A test of one rank runs in every process. nullptr: threads again.
void use_processes(World* host);
/// Then a test has what its own rank puts into its variables, and nothing of the others'.
bool ranks_are_processes();
/// Whether ranks read each other's tensors: threads, or processes that share memory of their GPUs. Collective.
bool ranks_read_tensors();
/// Whether a test's variables hold what this rank puts there.
bool is_here(int rank);
/// Why so many ranks cannot run here; empty where they can.
std::string lacking_gpus(int ranks);

/// Skips a gtest test that cannot run without these GPUs.
#define MEGALITH_NEEDS_GPU_RANKS(count) \
  if (const std::string why = comm::lacking_gpus(count); !why.empty()) GTEST_SKIP() << why

}  // namespace megalith::comm
