#pragma once
#include <memory>

#include "megalith/comm/peer/symmetric_transport.h"

namespace megalith::comm {

/// Large messages, sums and gathers of a group whose GPUs can access each other's memory. Every element is summed in
/// ascending group rank order and rounded once. All members make the same collective calls in the same order, each in
/// one stream. Messages of a pair and lane go in order, each end in one stream.
///
/// TransportChoice chooses one of two transports for each call:
///  - Copy engines, through the mailboxes (MailboxTransport): messages, and collectives that overlap with the caller's
///    compute (Priority), also all-reduces of two members that are soon awaited, outside of graphs. GEMMs beside them
///    lose little, while a collective kernel holds its CTAs as long as data travels or a peer is awaited.
///  - One symmetric-memory kernel per member for all other collectives (SymmetricTransport): the kernels of all members
///    wait for each other at a device barrier (DeviceBarrier) and access each other's tensors. This is faster when
///    little compute overlaps: a copy engine needs 10 us and more to start, and all data passes the mailboxes twice. It
///    requires that the thread of every member named all members' GPUs to device::use() before it took the memory
///    (device::allocate), or that the processes of members share memory (PeerMemory). Otherwise, and over PCIe, copy
///    engines carry all calls.
/// Row collectives are always symmetric-memory kernels, of at most kMaxRowCtas CTAs. Figures:
/// docs/measurements/communication.md.
///
/// Calls may be captured into a CUDA graph, which repeats them. In a graph copy engines delay other nodes, so kernels
/// carry messages and most calls that overlap with compute, too. A gather of two members is a kernel between two
/// barriers of the mailboxes. It gets the other member's address at the capture, so that capture is collective over the
/// hosts. No member may launch a graph before all members have made theirs. The tensors must live on every member until
/// the last launch on any member has ended.
///
/// Memory: each member's GPU holds a mailbox of MailboxLayout::bytes(): 32 MiB and one part more for collectives, 32 or
/// 64 MiB for messages. It counts as memory of the transport (World::device_bytes). Cost of a sum of b bytes over n
/// members: (n-1)/n b out and in, and a kernel over b. An all-reduce moves twice as much. Or one kernel does all of
/// this. A message is copied twice: into a slot of the receiver, and out of it by the receiver.
class PeerGroup {
 public:
  /// Null if the members are neither threads of one process nor processes that share memory, if their GPUs cannot
  /// access each other's memory, or if there are too many members. Collective over `host`.
  static std::unique_ptr<PeerGroup> connect(const Group& host, const GroupUse& use);
  PeerGroup(const PeerGroup&) = delete;
  PeerGroup& operator=(const PeerGroup&) = delete;

  /// Whether the kernels of members read and write each other's tensors.
  bool reaches_tensors() const { return choice_.reaches_tensors; }
  /// Whether this carries the call: the same answer on all members. It leaves out small calls and other kinds.
  bool takes(const Call& call) const { return choice_.takes(call); }
  /// The transport of such a call if it is made now in `stream`.
  PeerTransport transport_of(const Call& call, Stream stream) const;
  void all_reduce(const Call& call, void* data, Stream stream) const;
  void reduce_scatter(const Call& call, const void* in, void* out, Stream stream) const;
  void all_gather(const Call& call, const void* in, void* out, Stream stream) const;
  void gather_rows(const GatherRows& args, Stream stream) const { symmetric_.gather_rows(args, stream); }
  void gather_sum_rows(const GatherSumRows& args, Stream stream) const { symmetric_.gather_sum_rows(args, stream); }
  void send(const Call& call, const void* data, Stream stream);
  void recv(const Call& call, void* data, Stream stream) { mailboxes_.recv(call, data, stream); }

  /// Another thread calls it when some member will never arrive. Everything that waits for members continues, over
  /// undefined data. Call it repeatedly until the streams are idle.
  void release() noexcept { mailboxes_.release(); }

 private:
  PeerGroup(const Group& host, const GroupUse& use, int max_ctas, Mailboxes mailboxes);

  TransportChoice choice_;
  MailboxTransport mailboxes_;
  SymmetricTransport symmetric_;
};

}  // namespace megalith::comm
