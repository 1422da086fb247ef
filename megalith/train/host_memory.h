#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "megalith/comm/world.h"

namespace megalith::train {

/// One rank's part of what a run wants of hosts.
struct HostShare {
  std::uint64_t host = 0;  ///< the same on ranks that share memory
  Index needed = 0;
  Index available = 0;  ///< before any of them has taken anything
};

/// Says which host's ranks together need more than it has available; empty where none do. `what` ("graphs.check = 2")
/// asks for it, `fix` is how to ask for less.
std::string lack_of_host_memory(std::span<const HostShare> ranks, const std::string& what, const std::string& fix);
/// The same, where each rank needs `bytes` and all have taken what else they take. The same text on all ranks.
/// Collective.
std::string lack_of_host_memory(comm::World& world, Index bytes, const std::string& what, const std::string& fix);

}  // namespace megalith::train
