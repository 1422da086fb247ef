#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "megalith/comm/world.h"

namespace megalith::train {

/// One rank's need of host memory.
struct HostShare {
  std::uint64_t host = 0;  ///< the same on ranks that share memory
  Index needed = 0;
  Index available = 0;  ///< before any of them has taken memory
};

/// Names the host whose ranks together need more memory than it has available; empty if there is none. `what`
/// ("graphs.check = 2") needs the memory, and `fix` is how to need less.
std::string lack_of_host_memory(std::span<const HostShare> ranks, const std::string& what, const std::string& fix);
/// The same, if each rank needs `bytes` and all have taken their other memory. The same text on all ranks. Collective.
std::string lack_of_host_memory(comm::World& world, Index bytes, const std::string& what, const std::string& fix);

}  // namespace megalith::train
