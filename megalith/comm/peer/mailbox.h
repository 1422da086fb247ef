#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "megalith/comm/peer/device_barrier.h"
#include "megalith/comm/world.h"

namespace megalith::comm {

/// What a member's mailbox has room for.
struct MailboxLayout {
  /// Of a collective that is handled at a time, over all members.
  static constexpr Index kPieceBytes = Index{32} << 20;
  /// Of a message that is handled at a time: each part costs the launch of a graph as much as a whole message.
  static constexpr Index kSlotBytes = Index{8} << 20;
  static constexpr int kSlots = 2;  ///< pieces of messages that may wait, for each sender and lane
  static constexpr int kLanes = 2;
  static constexpr int kPhases = 2;

  int members = 0;
  Messages messages = Messages::none;  ///< a group for messages has no room for collectives

  /// Of one member's part of a collective's piece.
  Index part_bytes() const { return messages == Messages::none ? kPieceBytes / members / kAlignment * kAlignment : 0; }
  Index parts_bytes() const { return (members + 1) * part_bytes(); }
  int senders() const { return messages == Messages::none ? 0 : members == 2 ? 1 : 2; }
  Index bytes() const { return kWordBytes + parts_bytes() + senders() * kLanes * kSlots * kSlotBytes; }

  static constexpr Index kAlignment = 256;
  static constexpr Index kWordBytes = 4096;
};

/// Memory of one member's GPU into which the GPUs of the other members of its group write, and from which they read: by
/// copies, and by writes and waits of single words that stand in a stream's order (StreamSignals).
class PeerMailbox {
 public:
  /// On the GPU that the calling thread uses. `gpus`: of all members.
  PeerMailbox(const MailboxLayout& layout, int member, std::span<const int> gpus);

  // Collectives.
  /// Where member `from` lays its part for this member.
  std::byte* in(int from) const { return data_ + from * layout_.part_bytes(); }
  /// What this member has for all others.
  std::byte* out() const { return in(layout_.members); }
  /// 1 from when member `from` has come to the phase until this member has seen it, else 0.
  std::uint32_t* arrived(int phase, int from) const { return words_ + phase * layout_.members + from; }

  /// The last words: where kernels meet. Once it says that a member has failed, no kernel begins to reach into
  /// other members' memory.
  BarrierFlags* barrier_flags() const { return reinterpret_cast<BarrierFlags*>(data_) - 1; }

  // Messages, between neighbours on the ring of members.
  std::byte* slot(int from, int lane, int slot) const;
  /// 1 while there is something in the slot that this member has not taken out.
  std::uint32_t* full(int from, int lane, int slot) const { return slot_word(0, from, lane, slot); }
  /// 1 while member `to` has room in that slot of its mailbox for what this member sends.
  std::uint32_t* room(int to, int lane, int slot) const { return slot_word(1, to, lane, slot); }

 private:
  std::uint32_t* slot_word(int kind, int peer, int lane, int slot) const;

  MailboxLayout layout_;
  int member_;
  std::shared_ptr<std::byte> memory_;
  std::uint32_t* words_;
  std::byte* data_;
};

/// What GPUs reach each other by.
enum class Links : std::uint8_t {
  nvlink,  ///< or alike: carries atomics, and words come after the data written before them
  pcie,    ///< waits for words must flush, and no kernel computes with what lies beyond
};
struct Mailboxes {
  Links links = Links::nvlink;
  std::vector<std::shared_ptr<const PeerMailbox>> of_members;
};
/// Everybody's mailbox, in member order, when all members are threads of this process, no more than kMaxSummed, and
/// their GPUs reach each other's memory, over PCIe only where they can flush, can wait for words, and NCCL's variables
/// let them (refusal_of_peers); else none, for all members. They live until the last member lets go of them, as what
/// one of them has submitted may still touch all. Collective over `host`.
Mailboxes open_mailboxes(const Group& host, const GroupUse& use);

}  // namespace megalith::comm
