#pragma once
#include <memory>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// Whether NCCL was built in.
bool has_nccl();
/// Throws BackendError when it was not.
void require_nccl();
/// 22803 is 2.28.3; 0 without it.
int nccl_version_number();
/// "NCCL 2.28.3"; empty without it.
std::string nccl_version();

/// The ranks of `host`, which stays in use and must outlive the result, with groups between the GPUs that they use: one
/// rank, one GPU, chosen before with device::use(). group() makes GPU groups, also the one of all ranks; all() stays
/// the host's, for control messages. Making a group communicates by the host (in its group "bootstrap-NAME") and
/// between the GPUs, and makes a communicator with a stream for the group and for each channel of its messages.
///
/// A rank that fails ends what is in flight on its GPU. Another rank's failure, a call that has not ended within
/// options.timeout_s and an error of NCCL end this rank's communication for good: streams drain over undefined data,
/// and the next call or check_health() throws AbortedError, HangError or BackendError. What hangs inside a replayed
/// CUDA graph is noticed by the host's wait for it (HostWait), and the HangError then names groups, not the call.
/// Graphs that hold calls must be destroyed before the World. In call_log() a call is done when its wait has been
/// submitted.
///
/// Throws BackendError when NCCL was not built in or there is no GPU.
std::unique_ptr<World> nccl_world(World& host, const WorldOptions& options = {});

}  // namespace megalith::comm
