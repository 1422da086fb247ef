#include "megalith/train/host_memory.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "megalith/base/host.h"
#include "megalith/base/host_limits.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/comm/gather_values.h"

namespace megalith::train {

std::string lack_of_host_memory(std::span<const HostShare> ranks, const std::string& what, const std::string& fix) {
  for (std::size_t first = 0; first < ranks.size(); ++first) {
    Index needed = 0, available = std::numeric_limits<Index>::max(), count = 0;
    for (const HostShare& rank : ranks) {
      if (rank.host != ranks[first].host) continue;
      needed += rank.needed;
      available = std::min(available, rank.available);
      ++count;
    }
    if (needed <= available) continue;
    return str(what, ": needs ", human_bytes(needed), " (", needed, " bytes) of host memory for the ",
               count == 1 ? "rank" : str(count, " ranks"), " on the host of rank ", first, ", which has ",
               human_bytes(available), " (", available, " bytes) free: ", fix);
  }
  return "";
}

std::string lack_of_host_memory(comm::World& world, Index bytes, const std::string& what, const std::string& fix) {
  Exec host;
  comm::barrier(host, world.all());
  const HostShare mine{host_id(), bytes, host_limits().memory_available.value_or(std::numeric_limits<Index>::max())};
  std::vector<HostShare> ranks = comm::gather_values(world.all(), mine);
  if (!world.has_all_ranks()) ranks = {mine};
  return lack_of_host_memory(ranks, what, fix);
}

}  // namespace megalith::train
