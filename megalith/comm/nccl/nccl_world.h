#pragma once
#include <memory>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// Whether NCCL was built in.
bool has_nccl();
/// Throws BackendError if it was not.
void require_nccl();
/// 22803 is 2.28.3; 0 without it.
int nccl_version_number();
/// "NCCL 2.28.3"; empty without it.
std::string nccl_version();

/// The ranks of `host`, with groups between the GPUs that they use. `host` stays in use and must outlive the result.
/// One rank uses one GPU, chosen before with device::use(). group() makes GPU groups, also the one of all ranks. all()
/// stays the host's, for control messages. Making a group communicates over the host (in its group "bootstrap-NAME")
/// and between the GPUs. It makes a communicator with a stream for the group and for each channel of its messages.
///
/// A rank that fails ends everything in flight on its GPU. This rank's communication ends for good when another rank
/// fails, when a call has not ended within options.timeout_s, and when NCCL reports an error. Streams drain over
/// undefined data, and the next call or check_health() throws AbortedError, HangError or BackendError. A hang inside a
/// replayed CUDA graph is noticed by the host's wait for it (HostWait). The HangError then names groups, not the call.
/// Graphs with calls must be destroyed before the World. In call_log() a call is done when its wait has been submitted.
///
/// With `copy_engines` processes of one host share memory of their GPUs from here until the World ends, so that their
/// groups have the transports of rank threads (PeerGroup): what the calling thread takes by device::allocate(). If they
/// cannot (share_process_memory), the lowest rank of the host prints why. Collective.
///
/// Throws BackendError if NCCL was not built in or there is no GPU.
std::unique_ptr<World> nccl_world(World& host, const WorldOptions& options = {},
                                  Transport transfers = Transport::copy_engines);

}  // namespace megalith::comm
