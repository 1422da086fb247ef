#include "megalith/comm/nccl/gpus.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <ranges>
#include <set>
#include <string_view>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/host.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/comm/gather_values.h"
#include "megalith/comm/nccl/nccl_world.h"

namespace megalith::comm {
namespace {

/// The host of this process, by the name that NCCL uses.
RankGpus place_here() {
  const char* const id = std::getenv("NCCL_HOSTID");
  RankGpus here;
  (id == nullptr ? host_name() : id).copy(here.host.data(), here.host.size() - 1);
  const std::vector<device::GpuId> ids = device::gpu_ids();
  here.num_gpus =
      std::ranges::copy(ids | std::views::take(RankGpus::kMaxGpus), here.gpus.begin()).out - here.gpus.begin();
  return here;
}

/// The rank that uses a GPU.
using Users = std::map<device::GpuId, std::size_t>;

/// Finds a GPU that rank `rank` sees: one that nobody uses, else one whose user finds another. `asked`: GPUs whose
/// users have been searched before.
bool find_gpu(std::span<const RankGpus> gpus_of_ranks, std::size_t rank, Users& users, std::set<device::GpuId>& asked) {
  for (const device::GpuId& gpu : gpus_of_ranks[rank].seen()) {
    if (users.try_emplace(gpu, rank).second) return true;
  }
  for (const device::GpuId& gpu : gpus_of_ranks[rank].seen()) {
    if (!asked.insert(gpu).second || !find_gpu(gpus_of_ranks, users.at(gpu), users, asked)) continue;
    users[gpu] = rank;
    return true;
  }
  return false;
}

/// The user of each GPU of one host, among its ranks. Throws ConfigError if they cannot have one each.
Users users_of_gpus(std::span<const RankGpus> gpus_of_ranks, std::span<const std::size_t> ranks) {
  const char* const host = gpus_of_ranks[ranks.front()].host.data();
  std::set<device::GpuId> gpus;
  for (const std::size_t rank : ranks)
    gpus.insert(gpus_of_ranks[rank].seen().begin(), gpus_of_ranks[rank].seen().end());
  if (ranks.size() > gpus.size()) {
    throw ConfigError(str("parallel.ranks = ", gpus_of_ranks.size(), ": ", ranks.size(), " of them on host ", host,
                          ", where they see ", gpus.size(), gpus.size() == 1 ? " GPU" : " GPUs",
                          ": one rank per GPU; start fewer ranks, use more hosts, show the ranks more GPUs "
                          "(CUDA_VISIBLE_DEVICES), or set device.type = \"cpu\""));
  }
  Users users;
  for (const std::size_t rank : ranks) {
    std::set<device::GpuId> asked;
    if (find_gpu(gpus_of_ranks, rank, users, asked)) continue;
    throw ConfigError(str("parallel.ranks = ", gpus_of_ranks.size(), ": rank ", rank, " on host ", host,
                          " sees only GPUs that other ranks use: one rank per GPU; show every rank all GPUs of its "
                          "host, or one of its own (CUDA_VISIBLE_DEVICES, srun --gpus-per-task=1)"));
  }
  return users;
}

}  // namespace

void set_gpu_environment(int queues) {
  hardware_queues = queues;
  const std::string connections = std::to_string(queues);
  struct Setting {
    const char *name, *value, *otherwise;
  };
  const Setting settings[] = {
      {"CUDA_DEVICE_MAX_CONNECTIONS", connections.c_str(), "with fewer queues messages between GPUs may hang"},
      {"NCCL_GRAPH_REGISTER", "0", "NCCL cannot register the memory that GPUs of a process share"},
  };
  for (const auto& [name, value, otherwise] : settings) {
    const char* const set = std::getenv(name);
    const std::string before = set == nullptr ? "" : set;
    ::setenv(name, value, 1);  // first, because a search for GPUs already reads the number of queues
    if (before.empty() || before == value || device::num_gpus() < 2) continue;
    log::warning(str(name, '=', before, " is taken as ", value, ": ", otherwise));
  }
}

void set_kernel_loading(KernelLoading loading) {
  constexpr const char* kLoading = "CUDA_MODULE_LOADING";
  if (loading == KernelLoading::at_first_use) return;
  const char* const set = std::getenv(kLoading);
  const bool was_lazy = set != nullptr && std::string_view(set) == "LAZY";
  ::setenv(kLoading, "EAGER", 1);
  if (was_lazy) log::warning(str(kLoading, "=LAZY is taken as EAGER: ranks of a pipeline of GPUs may hang otherwise"));
}

void set_graph_environment(CallsBehindGraphs calls) {
  constexpr const char* kMixing = "NCCL_GRAPH_MIXING_SUPPORT";
  if (calls == CallsBehindGraphs::never) {
    if (nccl_version_number() < 22900) ::setenv(kMixing, "0", 0);
    return;
  }
  const char* const set = std::getenv(kMixing);
  if (set == nullptr || std::string_view(set) != "0") return;
  ::setenv(kMixing, "1", 1);
  log::warning(str(kMixing, "=0 is taken as 1: ranks make calls while graphs are in flight"));
}

std::string refusal_of_peers() {
  const auto value_of = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string disable = value_of("NCCL_P2P_DISABLE"), level = value_of("NCCL_P2P_LEVEL");
  if (!disable.empty() && disable != "0") return "NCCL_P2P_DISABLE=" + disable;
  if (level == "LOC" || level == "0") return "NCCL_P2P_LEVEL=" + level;
  return "";
}

int choose_gpu(std::span<const RankGpus> gpus_of_ranks, int rank) {
  std::map<std::array<char, 248>, std::vector<std::size_t>> ranks_of_hosts;
  for (std::size_t r = 0; r < gpus_of_ranks.size(); ++r) ranks_of_hosts[gpus_of_ranks[r].host].push_back(r);
  int chosen = 0;
  for (const auto& [host, ranks] : ranks_of_hosts) {
    for (const auto& [gpu, user] : users_of_gpus(gpus_of_ranks, ranks)) {
      const std::span<const device::GpuId> seen = gpus_of_ranks[user].seen();
      if (user == static_cast<std::size_t>(rank))
        chosen = static_cast<int>(std::ranges::find(seen, gpu) - seen.begin());
    }
  }
  return chosen;
}

int gpu_of_rank(World& host) { return choose_gpu(gather_values(host.all(), place_here()), host.rank()); }

void require_gpu_backend(int ranks) {
  require_device(Device::cuda);
  if (ranks > 1) require_nccl();
}

void require_gpus(int ranks) {
  require_gpu_backend(ranks);
  choose_gpu(std::vector<RankGpus>(static_cast<std::size_t>(ranks), place_here()), 0);
}

}  // namespace megalith::comm
