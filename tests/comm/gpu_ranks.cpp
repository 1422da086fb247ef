#include "tests/comm/gpu_ranks.h"

#include "megalith/comm/nccl/gpus.h"
#include "megalith/comm/nccl/nccl_world.h"
#include "megalith/comm/threads/thread_world.h"

namespace megalith::comm {

void run_gpu_rank(World& host, const std::function<void(World&)>& body, const WorldOptions& options) {
  device::use(Device::cuda, gpu_of_rank(host));
  const auto world = nccl_world(host, options);
  body(*world);
  world->check_health();
}

void run_gpu_ranks(int size, const std::function<void(World&)>& body, const WorldOptions& options) {
  run_ranks(size, [&](World& host) { run_gpu_rank(host, body, options); }, {.timeout_s = 60});
}

}  // namespace megalith::comm
