#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "megalith/comm/peer/kernels.h"
#include "megalith/comm/peer/mailbox.h"
#include "megalith/comm/peer/stream_signals.h"

namespace megalith::comm {

/// Large messages, sums and gathers of a group whose GPUs can access each other's memory. Every element is summed in
/// ascending group rank order and rounded once. All members make the same collective calls in the same order, each in
/// one stream. Messages of a pair and lane go in order, each end in one stream.
///
/// Transports:
///  - Copy engines, through the mailboxes: messages, and collectives that overlap with the caller's compute (Priority),
///    also all-reduces of two members that are soon awaited, outside of graphs. SMs add the parts that have arrived,
///    copy received messages out of their slots and, in a graph, wait (one thread of one SM). So GEMMs beside them lose
///    little, while a collective kernel holds its CTAs as long as data travels or a peer is awaited.
///  - One symmetric-memory kernel per member for all other collectives: the kernels of all members meet at a device
///    barrier (DeviceBarrier) and access each other's tensors. This is faster when little compute overlaps: a copy
///    engine needs 10 us and more to start, and all data passes the mailboxes twice. It requires that the
///    thread of every member named all members' GPUs to device::use() before it took the memory (device::allocate).
///    Otherwise, and over PCIe, copy engines carry all calls.
/// Figures: docs/measurements/communication.md.
///
/// Calls may be captured into a CUDA graph, which repeats them. In a graph copy engines delay other nodes, so kernels
/// carry messages and most calls that overlap with compute, too. A gather of two members is a kernel between two device
/// barriers. It gets the other member's address at the capture, so that capture is collective over the hosts. No member
/// may launch a graph before all members have made theirs. The tensors must live on every member until the last launch
/// on any member has ended.
///
/// Memory: each member's GPU holds a mailbox of MailboxLayout::bytes(): 32 MiB and one part more for collectives, 32 or
/// 64 MiB for messages. It counts as memory of the transport (World::device_bytes). Cost of a sum of b bytes over n
/// members: (n-1)/n b out and in, and a kernel over b. An all-reduce moves twice as much. Or one kernel does all of
/// this. A message is copied twice: into a slot of the receiver, and out of it by the receiver.
class PeerGroup {
 public:
  /// Null if the members are not threads of one process whose GPUs can access each other's memory, or if there are too
  /// many members. Collective over `host`.
  static std::unique_ptr<PeerGroup> connect(const Group& host, const GroupUse& use);
  ~PeerGroup();

  /// Channel::multiprocessors() for symmetric-memory kernels. Measured with 1.2B, batch 8 on H200s, from a graph, in ms
  /// per step with 6, 8, 12, 16 of them:
  ///   TP 2 75.1, 72.4, 78.2, -; a rank's share of TP 4 between two GPUs (docs/measurements/several-gpus.md) 45.5,
  ///   44.5,
  ///   48.0, 49.3.
  int multiprocessors() const { return 8; }
  /// Whether the kernels of members read and write each other's tensors.
  bool reaches_tensors() const { return max_ctas_ > 0; }
  /// Whether this transport carries the call: the same answer on all members. It leaves out small calls and other
  /// kinds.
  bool takes(const Call& call) const;
  /// The transport of such a call if it is made now in `stream`, in words.
  std::string_view transport_of(const Call& call, Stream stream) const;
  void all_reduce(const Call& call, void* data, Stream stream);
  void reduce_scatter(const Call& call, const void* in, void* out, Stream stream);
  void all_gather(const Call& call, const void* in, void* out, Stream stream);
  /// The number of pieces of a message. The first MailboxLayout::kSlots pieces can be sent before any is received.
  static Index pieces_of(const Call& call) {
    return ceil_div(call.count * size_of(call.dtype), MailboxLayout::kSlotBytes);
  }
  void send(const Call& call, const void* data, Stream stream);
  void recv(const Call& call, void* data, Stream stream);

  /// Another thread calls it when some member will never arrive. Everything that waits for members continues, over
  /// undefined data. Call it repeatedly until the streams are idle.
  void release() noexcept;

 private:
  struct Piece;
  struct Sum;
  enum class Way : std::uint8_t;
  PeerGroup(const Group& host, const GroupUse& use, int max_ctas, Mailboxes mailboxes);
  /// Bytes of a message, or of the larger of a collective's input and result.
  Index bytes_of(const Call& call) const;
  /// The transport of a collective that is made now.
  Way way_of(const Call& call, Stream stream) const;
  int size() const { return static_cast<int>(mailboxes_.size()); }
  const PeerMailbox& mailbox(int member) const { return *mailboxes_[static_cast<std::size_t>(member)]; }
  /// The addresses of all members, in member order. Collective over the host.
  std::vector<std::byte*> addresses_of_all(const void* own) const;
  void all_gather_between_barriers(const Call& call, const void* in, void* out, Stream stream) const;
  /// The own part: `count` elements from byte `offset` of the symmetric memory.
  SymmetricPart symmetric_part(const Call& call, void* memory, Index offset, Index count) const;
  template <class F>
  void for_others(F&& f) const;
  void meet(int phase, Stream stream) const;
  /// Work that body() submits starts when all members have arrived here. Later work starts when the work of all
  /// members' body() has ended.
  template <class F>
  void between_barriers(Stream stream, F&& body) const;
  void add_up(const Piece& piece, const Sum& sum, Stream stream) const;
  void pull(const Piece& piece, std::byte* to, Stream stream) const;
  /// Calls f(slot, begin, bytes) for the pieces of a message, each [begin, begin + bytes) of it.
  template <class F>
  void for_slots(const Call& call, F&& f);

  Group host_;
  MailboxLayout layout_;
  int max_ctas_;  ///< CTAs of a kernel with a device barrier; 0: tensors are not accessible
  int rank_;
  Waits waits_;
  std::vector<std::shared_ptr<const PeerMailbox>> mailboxes_;
  /// Pieces that were sent to or received from a member, [sent or received][member][lane].
  std::vector<std::uint64_t> pieces_;
  OwnedStream release_stream_;
};

}  // namespace megalith::comm
