#include "tests/comm/gpu_ranks.h"

#include <numeric>
#include <span>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/nccl/gpus.h"
#include "megalith/comm/nccl/nccl_world.h"
#include "megalith/comm/threads/thread_world.h"

namespace megalith::comm {

namespace {

World* processes = nullptr;

void run_on(int gpu, std::span<const int> others, World& host, const std::function<void(World&)>& body,
            const WorldOptions& options) {
  device::use(Device::cuda, gpu, others);
  const auto world = nccl_world(host, options);
  body(*world);
  world->check_health();
}

}  // namespace

void run_gpu_rank(World& host, const std::function<void(World&)>& body, const WorldOptions& options) {
  run_on(gpu_of_rank(host), {}, host, body, options);
}

void run_gpu_ranks(int size, const std::function<void(World&)>& body, const WorldOptions& options) {
  if (processes != nullptr && size > 1) {
    if (size != processes->size()) throw InternalError(str("[run_gpu_ranks] ", size, " ranks: other than processes"));
    return run_gpu_rank(*processes, body, options);
  }
  std::vector<int> gpus(static_cast<std::size_t>(size));
  std::iota(gpus.begin(), gpus.end(), 0);
  const auto rank = [&](World& host) { run_on(gpu_of_rank(host), gpus, host, body, options); };
  run_ranks(size, rank, {.timeout_s = 60});
}

void use_processes(World* host) { processes = host; }

bool ranks_are_processes() { return processes != nullptr; }

bool ranks_read_tensors() {
  if (processes == nullptr) return true;
  std::vector<int> ranks(static_cast<std::size_t>(processes->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  bool reads = false;
  run_gpu_ranks(processes->size(), [&](World& world) { reads = world.group("reach", ranks).channel().reads_rows(); });
  return reads;
}

bool is_here(int rank) { return processes == nullptr || processes->rank() == rank; }

std::string lacking_gpus(int ranks) {
  if (processes != nullptr)
    return ranks == processes->size() ? "" : str("needs ", ranks, " ranks, these are ", processes->size());
  const int gpus = device::num_gpus();
  return ranks <= gpus ? "" : str("needs ", ranks, " GPUs, this machine has ", gpus);
}

}  // namespace megalith::comm
