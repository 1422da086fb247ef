#pragma once
#include <array>
#include <span>
#include <string>

#include "megalith/comm/world.h"
#include "megalith/tensor/device.h"
#include "megalith/tensor/stream_budget.h"

namespace megalith::comm {

/// Sets environment variables that the libraries of GPUs read, and overwrites existing values. Warns about these if
/// there are two GPUs.
///  - CUDA_DEVICE_MAX_CONNECTIONS = queues: hardware queues of a GPU, more than a rank has streams (recipes for other
///    programs set 1). In a shared queue a stream waits for whatever another stream waits for, and a send after a
///    receive of the other direction never starts. Streams are counted against it (tensor/stream_budget.h). Four
///    processes with 32 each are more than can share a GPU.
///  - NCCL_GRAPH_REGISTER = 0: NCCL cannot register mapped memory, which the GPUs of rank threads share (device::use).
/// For main(), before threads start and before the first use of a GPU.
void set_gpu_environment(int queues = kHardwareQueues);

/// When a GPU gets the code of a kernel. CUDA loads it at its first use, and that waits for the GPU's work: in a
/// pipeline of GPUs for a message, whose sender may wait for this rank. Where sizes of GEMMs change from step to step
/// cuBLASLt has kernels that no warm-up finds. With rank threads `at_start` needs warm-ups in which hosts meet
/// (HostsMeet).
enum class KernelLoading : std::uint8_t { at_first_use, at_start };
/// `at_start` sets CUDA_MODULE_LOADING = EAGER, and warns if the variable was LAZY. A context then takes 418 MiB more
/// (H200, CUDA 13.0). Before the first use of a GPU.
void set_kernel_loading(KernelLoading loading);

/// Whether calls of a group outside of graphs may be submitted while a launched graph with calls of the same group
/// still runs, whatever the streams wait for.
enum class CallsBehindGraphs : std::uint8_t { may_come, never };
/// `never`: sets NCCL_GRAPH_MIXING_SUPPORT = 0, unless the variable is set. NCCL then puts no events between its calls
/// in a graph and others. The launch of a graph with 246 calls takes the host 31 us instead of 1.2 ms. Not from NCCL
/// 2.29 on, where 0 means no graphs at all. `may_come`: replaces 0 by 1, with a warning, because NCCL might hang. Call
/// it before the process makes its first communicator.
void set_graph_environment(CallsBehindGraphs calls);

/// The reason why GPUs must not access each other's memory, from NCCL's own variables: "NCCL_P2P_DISABLE=1", or
/// "NCCL_P2P_LEVEL=LOC". Empty if they may.
std::string refusal_of_peers();

/// The host of a rank, and the GPUs of it that the rank sees.
struct RankGpus {
  static constexpr std::size_t kMaxGpus = 32;  // no host has more

  std::array<char, 248> host{};                ///< its name, or NCCL_HOSTID if that is set: NCCL's hosts are ours
  std::array<device::GpuId, kMaxGpus> gpus{};  ///< that the rank may use, in the numbering of its process
  std::int64_t num_gpus = 0;

  std::span<const device::GpuId> seen() const { return std::span(gpus).first(static_cast<std::size_t>(num_gpus)); }
};

/// The GPU that rank `rank` must use, among those that it sees. Rank r sees gpus_of_ranks[r]. A launcher may show a
/// rank all GPUs of its host, one, or some, so GPUs are identified by their identity. In rank order each rank takes the
/// first GPU that it sees and that no rank before it took. If there is none, a rank before it gives one up for another
/// that it also sees. Throws ConfigError, the same for every rank, if the ranks of a host cannot have one GPU each.
int choose_gpu(std::span<const RankGpus> gpus_of_ranks, int rank);

/// The same for this rank, among the ranks of `host`, for device::use(). Communicates over host.all().
int gpu_of_rank(World& host);

/// Checks the requirements of `ranks` ranks that compute on GPUs: a driver, a GPU and, for several ranks, NCCL. Throws
/// BackendError.
void require_gpu_backend(int ranks);
/// The same for ranks that are threads of this process, with one GPU each. Throws BackendError and ConfigError.
void require_gpus(int ranks);

}  // namespace megalith::comm
