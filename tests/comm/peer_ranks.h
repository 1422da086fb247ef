#pragma once
#include <functional>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// What members' kernels reach of the other members' memory.
enum class InReach : std::uint8_t { mailboxes, tensors };

/// Which calls a group of run_peer_ranks() takes. `of_peers`: those that a PeerGroup takes. `all_in_turn`: all, for
/// whole steps. Messages, and what a PeerGroup does not take, go through the hosts. The hosts meet before each call
/// and wait for its end, so that none loads a kernel (which waits for the GPU) while another's kernel waits for its
/// own. Nothing can be captured then.
enum class PeerCalls { of_peers, all_in_turn };

/// Runs `body` on `size` threads of this process that share its GPUs, rank r on GPU r % (number of GPUs), which NCCL
/// refuses: groups of more members than the machine has GPUs. The world's groups consist of a PeerGroup each; what that
/// does not take fails, but for barriers, which are the hosts'. Ranks must pass a barrier before each call: one that
/// takes memory may wait for what is in flight on its GPU. None may copy to the host before its calls are done
/// (Exec::synchronize): such a copy waits with CUDA's lock held, and the ranks that it waits for submit under the same
/// lock. A rank that fails prints it to stderr and leaves the others waiting.
void run_peer_ranks(int size, const std::function<void(World&)>& body, InReach in_reach = InReach::tensors,
                    PeerCalls calls = PeerCalls::of_peers);

/// Ranks that may share a GPU: each queue of the GPU holds one stream, and one that waits holds up the others in it.
inline constexpr int kMaxRanksAGpu = 8, kMaxSendingRanksAGpu = 4;

}  // namespace megalith::comm
