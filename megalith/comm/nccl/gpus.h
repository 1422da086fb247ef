#pragma once
#include <array>
#include <span>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// Sets what GPUs' libraries read from the process's environment, over what stands there, of which it warns where there
/// are two GPUs. CUDA_DEVICE_MAX_CONNECTIONS = 32: hardware queues of a GPU, more than ranks have streams (recipes for
/// other programs set 1), as in a shared queue a stream waits for what another one waits for, and a send behind a
/// receive of the other direction never starts. NCCL_GRAPH_REGISTER = 0: NCCL cannot register mapped memory, which the
/// GPUs of rank threads share (device::use). For main(), before threads start and before the first use of a GPU.
void set_gpu_environment();

/// The host that a rank runs on.
struct Place {
  std::array<char, 248> host{};  ///< its name, or NCCL_HOSTID where that is set: NCCL's hosts are ours
  std::int64_t gpus = 0;         ///< that its ranks may use
};

/// Which of its host's GPUs rank `rank` is to use, where rank r runs at places[r]: ranks of one host are numbered in
/// rank order. Throws ConfigError, the same for every rank, when a host has more ranks than GPUs.
int choose_gpu(std::span<const Place> places, int rank);

/// The same for this rank, among the ranks of `host`, for device::use(). Communicates over host.all().
int gpu_of_rank(World& host);

/// What `ranks` ranks need to compute on GPUs: a driver and a GPU, and NCCL when they are several. Throws BackendError.
void require_gpu_backend(int ranks);
/// The same for ranks that are threads of this process, with a GPU for each. Throws BackendError and ConfigError.
void require_gpus(int ranks);

}  // namespace megalith::comm
