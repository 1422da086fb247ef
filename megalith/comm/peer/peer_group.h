#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "megalith/comm/peer/kernels.h"
#include "megalith/comm/peer/mailbox.h"
#include "megalith/comm/peer/stream_signals.h"

namespace megalith::comm {

/// Large messages, sums and gathers of a group whose GPUs reach each other's memory. Sums are taken in ascending group
/// rank for every element and rounded once. All members make the same collective calls in the same order, each in one
/// stream; messages of a pair and lane go in order, each end in one stream.
///
/// Messages (in a graph: by kernels), and collectives with work beside them (Priority), go by the GPUs' copy engines:
/// multiprocessors add what has arrived, take received messages out of their slots and, in a graph, wait (one thread of
/// one), so that products beside them lose little, while a collective kernel holds its thread blocks for as long as
/// data travels or a peer is awaited. So do awaited all-reduces of two members outside of graphs. Other collectives are
/// one kernel that meets the other members' (barrier.h) and reads and writes their tensors: sooner done, as a copy
/// engine needs 10 us and more to begin, and everything goes through the mailboxes twice. For that every
/// member's thread must have named all members' GPUs to device::use() before it took the memory (device::allocate),
/// else copy engines carry all, as they do over PCIe. Figures: docs/benchmarks.md.
///
/// Calls may be captured into a CUDA graph, which repeats them. There copy engines keep their neighbours waiting, so
/// that most calls that have work beside them go by kernels, too; that of a gather of two members stands between two
/// barriers and is told the other's address at the capture, which so is collective over the hosts, too. No member may
/// launch a graph before all have made theirs, and the tensors must live on every member until the last launch on any
/// has ended.
///
/// Memory: each member's GPU holds a mailbox of MailboxLayout::bytes(), 32 MiB and a part more for collectives, 32 or
/// 64 MiB for messages; it counts as the transport's (World::device_bytes).
/// A sum of b bytes over n members: (n-1)/n b out and in, a kernel over b, and for an all-reduce as much again; or one
/// kernel that does it all. A message is copied twice: into a slot of the receiver, and by the receiver out of it.
class PeerGroup {
 public:
  /// Null when the members are not threads of one process whose GPUs reach each other, or are too many. Collective
  /// over `host`.
  static std::unique_ptr<PeerGroup> connect(const Group& host, const GroupUse& use);
  ~PeerGroup();

  /// Channel::multiprocessors(): for the kernels that meet others. 1.2B, batch 8 on H200s, ms a step from a graph with
  /// 6, 8, 12, 16 of them: TP 2 75.1, 72.4, 78.2, -; a rank's share of TP 4 between two GPUs (docs/benchmarks.md) 45.5,
  /// 44.5, 48.0, 49.3.
  int multiprocessors() const { return 8; }
  /// Whether members' kernels read and write each other's tensors.
  bool reaches_tensors() const { return max_ctas_ > 0; }
  /// Whether a call comes here: the same answer on all members. The others are small, or of another kind.
  bool takes(const Call& call) const;
  /// How a call that comes here goes if it is made now in `stream`, in words.
  std::string_view transport_of(const Call& call, Stream stream) const;
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
  enum class Way : std::uint8_t;
  PeerGroup(const Group& host, const GroupUse& use, int max_ctas, Mailboxes mailboxes);
  /// Of a message, or of the larger of a collective's input and result.
  Index bytes_of(const Call& call) const;
  /// How a collective goes that is made now.
  Way way_of(const Call& call, Stream stream) const;
  int size() const { return static_cast<int>(mailboxes_.size()); }
  const PeerMailbox& mailbox(int member) const { return *mailboxes_[static_cast<std::size_t>(member)]; }
  /// Everybody's address, in member order. Collective over the host.
  std::vector<std::byte*> addresses_of_all(const void* own) const;
  void all_gather_between_barriers(const Call& call, const void* in, void* out, Stream stream) const;
  /// The own part, of `count` elements from byte `offset` of what all members bring along.
  SymmetricPart symmetric_part(const Call& call, void* memory, Index offset, Index count) const;
  template <class F>
  void for_others(F&& f) const;
  void meet(int phase, Stream stream) const;
  /// What body() submits begins when all members have come here, and what follows when theirs has ended.
  template <class F>
  void between_barriers(Stream stream, F&& body) const;
  void add_up(const Piece& piece, const Sum& sum, Stream stream) const;
  void pull(const Piece& piece, std::byte* to, Stream stream) const;
  /// Calls f(slot, begin, bytes) for the pieces of a message, [begin, begin + bytes) of it each.
  template <class F>
  void for_slots(const Call& call, F&& f);

  Group host_;
  MailboxLayout layout_;
  int max_ctas_;  ///< of a kernel that meets others; 0: tensors are out of reach
  int rank_;
  Waits waits_;
  std::vector<std::shared_ptr<const PeerMailbox>> mailboxes_;
  /// Pieces that have gone to or come from a member by a lane, [sent or received][member][lane].
  std::vector<std::uint64_t> pieces_;
  OwnedStream release_stream_;
};

}  // namespace megalith::comm
