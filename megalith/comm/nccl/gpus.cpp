#include "megalith/comm/nccl/gpus.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::comm {
namespace {

/// Where a rank runs.
struct Place {
  std::array<char, 248> host{};
  std::int64_t gpus = 0;
};

}  // namespace

void widen_gpu_queues() { ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

int gpu_of_rank(World& host) {
  Place own;
  ::gethostname(own.host.data(), own.host.size() - 1);
  own.gpus = device::num_gpus();
  std::vector<Place> places(static_cast<std::size_t>(host.size()));
  const auto bytes = static_cast<Index>(sizeof(Place));
  Exec ex;
  all_gather(ex, host.all(), Tensor(&own, {bytes}, DType::u8), Tensor(places.data(), {bytes * host.size()}, DType::u8))
      .wait(ex);
  for (const Place& place : places) {
    const auto here = [&](const Place& other) { return other.host == place.host; };
    const auto ranks = std::ranges::count_if(places, here);
    if (ranks <= place.gpus) continue;
    throw ConfigError(str("parallel.ranks: ", ranks, " ranks on host ", place.host.data(), ", which has ", place.gpus,
                          " GPUs: one rank per GPU; start fewer ranks, use more hosts, or set device.type = \"cpu\""));
  }
  const auto lower = std::span(places).first(static_cast<std::size_t>(host.rank()));
  return static_cast<int>(std::ranges::count_if(lower, [&](const Place& other) { return other.host == own.host; }));
}

}  // namespace megalith::comm
