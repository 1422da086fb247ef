#include "megalith/comm/peer/transport_choice.h"

#include "megalith/comm/peer/kernels.h"

namespace megalith::comm {
namespace {

constexpr Index kMinBytes = Index{1} << 20;  ///< smallest collective; NCCL's latency is lower below it
constexpr Index kMinMessageBytes = Index{256} << 10;
/// From this size on a copy engine's latency in a graph matters little. DP 2 of 124M from a graph took 55.0 ms per step
/// with copy engines for gradient sums that overlap with the backward pass. With kernels for all sums it took 55.9.
constexpr Index kMinCopiedBytes = Index{32} << 20;

bool is_sum(const Call& call) {
  return (call.op == Op::all_reduce || call.op == Op::reduce_scatter) && call.reduce == Reduce::sum &&
         is_summed(call.dtype);
}

}  // namespace

std::string_view name_of(PeerTransport transport) {
  switch (transport) {
    case PeerTransport::none:
      return "none";
    case PeerTransport::copy_engines:
      return "copy engines";
    case PeerTransport::copy_kernels:
      return "kernels";
    case PeerTransport::symmetric_kernels:
      return "kernels with device barriers";
    case PeerTransport::kernels_in_barriers:
      return "kernels between barriers";
  }
  return "?";
}

PeerTransport TransportChoice::of(const Call& call, Capturing capturing) const {
  // The bytes of a message, or of the larger of a collective's input and result.
  const Index bytes = call.count * size_of(call.dtype) * (call.op == Op::all_gather ? members : 1);
  const bool captured = capturing == Capturing::yes;
  if (is_of_rows(call.op))
    return messages == Messages::none && reaches_tensors ? PeerTransport::symmetric_kernels : PeerTransport::none;
  if (is_message(call.op)) {
    if (messages == Messages::none || bytes < kMinMessageBytes) return PeerTransport::none;
    return captured ? PeerTransport::copy_kernels : PeerTransport::copy_engines;
  }
  if (messages != Messages::none || bytes < kMinBytes) return PeerTransport::none;
  if (!is_sum(call) && call.op != Op::all_gather) return PeerTransport::none;
  if (!reaches_tensors) return PeerTransport::copy_engines;
  if (call.priority == Priority::beside_work && (!captured || bytes >= kMinCopiedBytes))
    return PeerTransport::copy_engines;
  if (call.priority == Priority::alone || members > 2) return PeerTransport::symmetric_kernels;
  // The case of two members. 1.2B on H200s, ms per step: eager sums with copies 73.3, with symmetric-memory kernels
  // 74.7 (a rank's share of TP 4: 54.1, 48.0). Sequence parallelism from a graph: gathers with their own barrier 74.2,
  // 74.5, between two barriers 71.8, 73.1.
  if (call.op == Op::all_reduce && !captured) return PeerTransport::copy_engines;
  return call.op == Op::all_gather && captured ? PeerTransport::kernels_in_barriers : PeerTransport::symmetric_kernels;
}

}  // namespace megalith::comm
