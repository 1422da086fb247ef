#pragma once
#include <memory>
#include <span>
#include <vector>

#include "megalith/comm/peer/kernels.h"
#include "megalith/comm/peer/mailbox.h"

namespace megalith::comm {

/// Large messages, sums and gathers of a group whose GPUs reach each other's memory, by their copy engines:
/// multiprocessors add what has arrived, take received messages out of their slots and, in a graph, wait (one thread of
/// one), so that products beside them lose little, while a collective kernel holds its thread blocks for as long as
/// data travels or a peer is awaited. Sums are taken in ascending group rank for every element and rounded once. All
/// members make the same collective calls in the same order, each in one stream; messages of a pair and lane go in
/// order, each end in one stream.
///
/// Calls may be captured into a CUDA graph, which repeats them. There copy engines keep their neighbours waiting
/// (figures in docs/benchmarks.md), and addresses stay. So in a group made with Captures::collectives kernels read and
/// write the others' tensors: an all-reduce is one kernel that meets theirs (meeting.h); for a reduce-scatter or a
/// gather members tell each other their addresses at the capture, which so is collective over the hosts, too, and the
/// kernel stands between two meetings. No member may launch a graph before all have made theirs, and the tensors must
/// live on every member until the last launch on any has ended. Large ones that have work beside them (Haste) go by
/// copy engines all the same, as that kernel would take multiprocessors from it.
///
/// Memory: each member's GPU holds a mailbox of MailboxLayout::bytes(), 32 MiB and a part more for collectives, 32 or
/// 64 MiB for messages; it counts as the transport's (World::device_bytes).
/// A sum of b bytes over n members: (n-1)/n b out and in, a kernel over b, and for an all-reduce as much again; or one
/// kernel that does it all. A message is copied twice: into a slot of the receiver, and by the receiver out of it.
/// Measured on H200s: docs/benchmarks.md.
class PeerGroup {
 public:
  /// Null when the members are not threads of one process whose GPUs reach each other, or are too many. Collective
  /// over `host`.
  static std::unique_ptr<PeerGroup> connect(const Group& host, const GroupUse& use);
  ~PeerGroup();

  /// Channel::multiprocessors(): for the sums of eager steps and, in a graph, an all-reduce's kernel (a
  /// reduce-scatter's and a gather's have more thread blocks, of half the size). 1.2B, batch 8 on H200s, ms a step with
  /// 0, 8, 16, 24 of them: TP 2 75.3, 74.4, -, 75.6; TP 4 60.4, 59.3, 58.6, -; from a graph with 8, 12 TP 2 72.8, 78.2.
  int multiprocessors() const { return 4 * size(); }
  /// Whether a call comes here: the same answer on all members. The others are small, or of another kind.
  bool takes(const Call& call) const;
  void all_reduce(const Call& call, void* data, Stream stream);
  void reduce_scatter(const Call& call, const void* in, void* out, Stream stream);
  void all_gather(const Call& call, const void* in, void* out, Stream stream);
  /// A message's pieces, of which MailboxLayout::kSlots go before the first is received.
  static Index pieces_of(const Call& call) {
    return ceil_div(call.count * size_of(call.dtype), MailboxLayout::kSlotBytes);
  }
  void send(const Call& call, const void* data, Stream stream);
  void recv(const Call& call, void* data, Stream stream);

  /// For another thread, when some member will not come any more: what waits for members goes on, over undefined data.
  /// To be called again until the streams are idle.
  void release() noexcept;

 private:
  struct Piece;
  struct Sum;
  PeerGroup(const Group& host, const GroupUse& use, std::vector<std::shared_ptr<const PeerMailbox>> mailboxes);
  /// Whether a call over so many bytes that is made now goes by kernels that reach into the others' tensors.
  bool reaches_tensors(const Call& call, Index bytes, Stream stream) const;
  int size() const { return static_cast<int>(mailboxes_.size()); }
  const PeerMailbox& mailbox(int member) const { return *mailboxes_[static_cast<std::size_t>(member)]; }
  Reach reach(int blocks) const;
  /// Everybody's address, in member order. Collective over the host.
  std::vector<std::byte*> addresses_of_all(const void* own) const;
  void all_reduce_in_graph(const Call& call, void* data, Stream stream) const;
  void reduce_scatter_in_graph(const Call& call, const void* in, void* out, Stream stream) const;
  void all_gather_in_graph(const Call& call, const void* in, void* out, Stream stream) const;
  template <class F>
  void for_others(F&& f) const;
  void meet(int phase, Stream stream) const;
  /// What body() submits begins when all members have come here, and what follows when theirs has ended.
  template <class F>
  void between_meetings(Stream stream, F&& body) const;
  void add_up(const Piece& piece, const Sum& sum, Stream stream) const;
  void pull(const Piece& piece, std::byte* to, Stream stream) const;
  /// Calls f(slot, begin, bytes) for the pieces of a message, [begin, begin + bytes) of it each.
  template <class F>
  void for_slots(const Call& call, F&& f);

  Group host_;
  Captures captures_;
  MailboxLayout layout_;
  int rank_;
  std::vector<std::shared_ptr<const PeerMailbox>> mailboxes_;
  /// Pieces that have gone to or come from a member by a lane, [sent or received][member][lane].
  std::vector<std::uint64_t> pieces_;
  OwnedStream release_stream_;
};

}  // namespace megalith::comm
