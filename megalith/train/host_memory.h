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

/// Throws ConfigError when the ranks of a host together need more than it has available: `what` ("graphs.check = 2") is
/// the setting that asks for it, `fix` how to ask for less.
void require_host_memory(std::span<const HostShare> ranks, const std::string& what, const std::string& fix);
/// The same, where each rank needs `bytes` and all have taken what else they take. Throws on all ranks or on none.
/// Collective.
void require_host_memory(comm::World& world, Index bytes, const std::string& what, const std::string& fix);

}  // namespace megalith::train
