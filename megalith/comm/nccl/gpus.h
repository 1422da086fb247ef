#pragma once
#include <array>
#include <span>
#include <string>

#include "megalith/comm/world.h"
#include "megalith/tensor/device.h"

namespace megalith::comm {

/// Sets what GPUs' libraries read from the process's environment, over what stands there, of which it warns where there
/// are two GPUs. CUDA_DEVICE_MAX_CONNECTIONS = 32: hardware queues of a GPU, more than ranks have streams (recipes for
/// other programs set 1), as in a shared queue a stream waits for what another one waits for, and a send behind a
/// receive of the other direction never starts. NCCL_GRAPH_REGISTER = 0: NCCL cannot register mapped memory, which the
/// GPUs of rank threads share (device::use). For main(), before threads start and before the first use of a GPU.
void set_gpu_environment();

/// Whether a group's calls outside of graphs may follow the launch of a graph that has calls of the same group before
/// that launch has ended, whatever streams wait for.
enum class CallsBehindGraphs : std::uint8_t { may_come, never };
/// Where they never do, sets NCCL_GRAPH_MIXING_SUPPORT = 0, unless it is set: NCCL then puts nothing between its calls
/// in a graph and others, and launching a graph of 246 calls takes the host 31 us instead of 1.2 ms. Not from NCCL 2.29
/// on, where 0 stands for no graphs at all. Where they may come, 0 is taken as 1, with a warning: NCCL might hang.
/// Before the process's first communicator.
void set_graph_environment(CallsBehindGraphs calls);

/// Why GPUs are not to reach each other's memory, as NCCL's own variables ask: "NCCL_P2P_DISABLE=1", or
/// "NCCL_P2P_LEVEL=LOC". Empty where they may.
std::string refusal_of_peers();

/// The host that a rank runs on, and what the rank sees of it.
struct RankGpus {
  static constexpr std::size_t kMaxGpus = 32;  // no host has more

  std::array<char, 248> host{};                ///< its name, or NCCL_HOSTID where that is set: NCCL's hosts are ours
  std::array<device::GpuId, kMaxGpus> gpus{};  ///< that the rank may use, as its process numbers them
  std::int64_t num_gpus = 0;

  std::span<const device::GpuId> seen() const { return std::span(gpus).first(static_cast<std::size_t>(num_gpus)); }
};

/// Which of the GPUs that it sees rank `rank` is to use, where rank r runs at places[r]. Launchers may show every rank
/// all GPUs of its host, one or some, so GPUs are told apart by identity: in rank order each rank takes the first that
/// it sees and none before it took, or one that such a rank leaves for another that it sees too. Throws ConfigError,
/// the same for every rank, where the ranks of a host cannot have a GPU each.
int choose_gpu(std::span<const RankGpus> places, int rank);

/// The same for this rank, among the ranks of `host`, for device::use(). Communicates over host.all().
int gpu_of_rank(World& host);

/// What `ranks` ranks need to compute on GPUs: a driver and a GPU, and NCCL when they are several. Throws BackendError.
void require_gpu_backend(int ranks);
/// The same for ranks that are threads of this process, with a GPU for each. Throws BackendError and ConfigError.
void require_gpus(int ranks);

}  // namespace megalith::comm
