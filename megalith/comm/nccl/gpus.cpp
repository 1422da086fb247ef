#include "megalith/comm/nccl/gpus.h"

#include <algorithm>
#include <cstdlib>

#include "megalith/base/error.h"
#include "megalith/base/host.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/comm/gather_values.h"
#include "megalith/comm/nccl/nccl_world.h"

namespace megalith::comm {
namespace {

/// Where this process runs, by the name that NCCL goes by.
Place place_here() {
  const char* const id = std::getenv("NCCL_HOSTID");
  Place here;
  (id == nullptr ? host_name() : id).copy(here.host.data(), here.host.size() - 1);
  here.gpus = device::num_gpus();
  return here;
}

}  // namespace

void set_gpu_environment() {
  struct Setting {
    const char *name, *value, *otherwise;
  };
  constexpr Setting kSettings[] = {
      {"CUDA_DEVICE_MAX_CONNECTIONS", "32", "with fewer queues messages between GPUs may hang"},
      {"NCCL_GRAPH_REGISTER", "0", "NCCL cannot register the memory that GPUs of a process share"},
  };
  for (const auto& [name, value, otherwise] : kSettings) {
    const char* const set = std::getenv(name);
    const std::string before = set == nullptr ? "" : set;
    ::setenv(name, value, 1);  // first: looking for GPUs already reads the number of queues
    if (before.empty() || before == value || device::num_gpus() < 2) continue;
    log::warning(str(name, '=', before, " is taken as ", value, ": ", otherwise));
  }
}

int choose_gpu(std::span<const Place> places, int rank) {
  for (const Place& place : places) {
    const auto ranks = std::ranges::count(places, place.host, &Place::host);
    if (ranks <= place.gpus) continue;
    throw ConfigError(str("parallel.ranks = ", places.size(), ": ", ranks, " of them on host ", place.host.data(),
                          ", which has ", place.gpus, place.gpus == 1 ? " GPU" : " GPUs",
                          ": one rank per GPU; start fewer ranks, use more hosts, or set device.type = \"cpu\""));
  }
  const auto at = static_cast<std::size_t>(rank);
  return static_cast<int>(std::ranges::count(places.first(at), places[at].host, &Place::host));
}

int gpu_of_rank(World& host) { return choose_gpu(gather_values(host.all(), place_here()), host.rank()); }

void require_gpu_backend(int ranks) {
  require_device(Device::cuda);
  if (ranks > 1) require_nccl();
}

void require_gpus(int ranks) {
  require_gpu_backend(ranks);
  choose_gpu(std::vector<Place>(static_cast<std::size_t>(ranks), place_here()), 0);
}

}  // namespace megalith::comm
