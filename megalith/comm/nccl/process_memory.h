#pragma once
#include <memory>
#include <string>

#include "megalith/comm/peer/peer_memory.h"
#include "megalith/comm/world.h"

namespace megalith::comm {

/// The memory of GPUs that ranks share which are processes of one host.
struct ProcessMemory {
  std::shared_ptr<PeerMemory> memory;  ///< null: they share none
  std::string why_not;                 ///< empty if there is nothing to share: one rank on the host, or rank threads
};
/// Shares memory between the processes of this rank's host if NVLink connects all their GPUs, which each of them sees,
/// and if NCCL's variables allow it (refusal_of_peers). The processes map a trial piece of each other's memory. If that
/// fails on one, as with containers that share no network, or with parts of a GPU (MIG), all share none. Waits for
/// another process end after `timeout_s`. Collective over the ranks of each host.
ProcessMemory share_process_memory(World& host, double timeout_s);

}  // namespace megalith::comm
