#pragma once
#include <cstdint>
#include <string_view>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// How a PeerGroup carries a call.
enum class PeerTransport : std::uint8_t {
  none,                 ///< not at all: the call is small, or of another kind
  copy_engines,         ///< copies by copy engines, through the mailboxes
  copy_kernels,         ///< messages: copies by kernels, through the mailboxes
  symmetric_kernels,    ///< one kernel per member with a device barrier, which accesses the others' tensors
  kernels_in_barriers,  ///< gathers: a kernel that accesses the others' tensors, between two barriers of mailboxes
};
/// "copy engines"
std::string_view name_of(PeerTransport transport);

/// Whether a call is made in a stream whose work is captured into a graph.
enum class Capturing : std::uint8_t { no, yes };

/// Chooses the transport of each call of a group, the same on all members.
struct TransportChoice {
  int members = 0;
  Messages messages = Messages::none;  ///< a group with messages leaves all collectives to NCCL
  bool reaches_tensors = false;        ///< kernels of members may access each other's tensors

  PeerTransport of(const Call& call, Capturing capturing) const;
  bool takes(const Call& call) const { return of(call, Capturing::no) != PeerTransport::none; }
};

}  // namespace megalith::comm
