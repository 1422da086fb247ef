#pragma once
#include <memory>
#include <vector>

#include "megalith/comm/peer/mailbox.h"
#include "megalith/comm/peer/stream_signals.h"
#include "megalith/comm/peer/transport_choice.h"

namespace megalith::comm {

/// Carries calls through the mailboxes of a group, by copies: one member's end. SMs add the parts that have arrived,
/// copy received messages out of their slots and, in a graph, wait (one thread of one SM).
///
/// A collective has two barriers of all members. A member submits its work in one order, so a barrier shows that all
/// its earlier work is complete:
///   write parts into the others' mailboxes,  barrier,  sum and write the sum into the own one,  barrier,  copy theirs.
/// After the second barrier every member's `in` may be reused. After the first one of the next call every `out` may be.
class MailboxTransport {
 public:
  MailboxTransport(int rank, Messages messages, Mailboxes mailboxes);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(mailboxes_.size()); }
  const PeerMailbox& mailbox(int member) const { return *mailboxes_[static_cast<std::size_t>(member)]; }

  void all_reduce(const Call& call, void* data, Stream stream) const;
  void reduce_scatter(const Call& call, const void* in, void* out, Stream stream) const;
  void all_gather(const Call& call, const void* in, void* out, Stream stream) const;

  /// The number of pieces of a message. The first MailboxLayout::kSlots pieces can be sent before any is received.
  static Index pieces_of(const Call& call) {
    return ceil_div(call.count * size_of(call.dtype), MailboxLayout::kSlotBytes);
  }
  /// `transport`: copy_engines or copy_kernels.
  void send(const Call& call, const void* data, PeerTransport transport, Stream stream);
  void recv(const Call& call, void* data, Stream stream);

  /// Work that body() submits starts when all members have arrived here. Later work starts when the work of all
  /// members' body() has ended.
  template <class F>
  void between_barriers(Stream stream, F&& body) const {
    barrier(0, stream);
    body();
    barrier(1, stream);
  }

  /// PeerGroup::release().
  void release() noexcept;

 private:
  struct MemberParts;
  struct Sum;
  template <class F>
  void for_others(F&& f) const;
  void barrier(int phase, Stream stream) const;
  void reduce_part(const MemberParts& parts, const Sum& sum, Stream stream) const;
  void gather_parts(const MemberParts& parts, std::byte* to, Stream stream) const;
  /// Calls f(slot, begin, bytes) for the pieces of a message, each [begin, begin + bytes) of it.
  template <class F>
  void for_slots(const Call& call, F&& f);

  MailboxLayout layout_;
  int rank_;
  Waits waits_;
  std::vector<std::shared_ptr<const PeerMailbox>> mailboxes_;
  /// Pieces that were sent to or received from a member, [sent or received][member][lane].
  std::vector<std::uint64_t> pieces_;
  OwnedStream release_stream_;
};

}  // namespace megalith::comm
