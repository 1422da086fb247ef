#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "megalith/comm/peer/device_barrier.h"
#include "megalith/comm/world.h"

namespace megalith::comm {

/// Sizes of one member's mailbox.
struct MailboxLayout {
  /// Bytes of a collective that are handled at a time, over all members.
  static constexpr Index kPieceBytes = Index{32} << 20;
  /// Bytes of a message that are handled at a time. Each piece costs the launch of a graph as much as a whole message.
  static constexpr Index kSlotBytes = Index{8} << 20;
  static constexpr int kSlots = 2;  ///< pieces of messages that may wait, per sender and lane
  static constexpr int kLanes = 2;
  static constexpr int kPhases = 2;

  int members = 0;
  Messages messages = Messages::none;  ///< a group for messages has no room for collectives

  /// One member's part of a piece of a collective.
  Index part_bytes() const { return messages == Messages::none ? kPieceBytes / members / kAlignment * kAlignment : 0; }
  Index parts_bytes() const { return (members + 1) * part_bytes(); }
  int senders() const { return messages == Messages::none ? 0 : members == 2 ? 1 : 2; }
  Index bytes() const { return kWordBytes + parts_bytes() + senders() * kLanes * kSlots * kSlotBytes; }

  static constexpr Index kAlignment = 256;
  static constexpr Index kWordBytes = 4096;
};

/// Memory of one member's GPU that the GPUs of the other members of its group write and read. They use copies, and
/// writes of and waits for single words in the order of a stream (StreamSignals).
class PeerMailbox {
 public:
  /// On the GPU of the calling thread. `gpus`: those of all members that are threads of this process.
  PeerMailbox(const MailboxLayout& layout, int member, std::span<const int> gpus);
  /// That of a member in another process, whose memory is at the same address here.
  PeerMailbox(const MailboxLayout& layout, int member, std::byte* memory);
  std::byte* memory() const { return memory_.get(); }

  // Collectives.
  /// Where member `from` writes its part for this member.
  std::byte* in(int from) const { return data_ + from * layout_.part_bytes(); }
  /// Where this member has its data for all others.
  std::byte* out() const { return in(layout_.members); }
  /// 1 from the time when member `from` has reached the phase until this member has seen it, else 0.
  std::uint32_t* arrived(int phase, int from) const { return words_ + phase * layout_.members + from; }

  /// The last words: the flags of the device barrier. If they show that a member has failed, no kernel starts to access
  /// the memory of other members.
  BarrierFlags* barrier_flags() const { return reinterpret_cast<BarrierFlags*>(data_) - 1; }

  // Messages, between neighbours on the ring of members.
  std::byte* slot(int from, int lane, int slot) const;
  /// 1 while the slot holds a piece that this member has not copied out.
  std::uint32_t* full(int from, int lane, int slot) const { return slot_word(0, from, lane, slot); }
  /// 1 while that slot of member `to`'s mailbox has room for a piece from this member.
  std::uint32_t* room(int to, int lane, int slot) const { return slot_word(1, to, lane, slot); }

 private:
  std::uint32_t* slot_word(int kind, int peer, int lane, int slot) const;

  MailboxLayout layout_;
  int member_;
  std::shared_ptr<std::byte> memory_;
  std::uint32_t* words_;
  std::byte* data_;
};

/// Whether a GPU of this process can access the memory of another one, and whether it does so over NVLink.
bool is_reached(int own, int other);
bool has_nvlink(int own, int other);

/// The link between the GPUs of a group.
enum class Links : std::uint8_t {
  nvlink,  ///< or equivalent: carries atomics, and a word arrives after the data that was written before it
  pcie,    ///< a wait for a word must flush, and no kernel computes with memory of other GPUs
};
struct Mailboxes {
  Links links = Links::nvlink;
  std::vector<std::shared_ptr<const PeerMailbox>> of_members;
};
/// The mailboxes of all members, in member order. They exist only if addresses mean the same to all members, which are
/// threads of one process or share memory (cuda::memory_publisher), there are at most kMaxSummed members, and their
/// GPUs can access each other's memory. Over PCIe the GPUs must also be able to flush and to wait for words, and NCCL's
/// variables must allow it (refusal_of_peers). Otherwise there is none, for all members. A mailbox lives until the last
/// member releases it, between processes until the sharing ends, because submitted work of one member may still access
/// all of them. Collective over `host`.
Mailboxes open_mailboxes(const Group& host, const GroupUse& use);

}  // namespace megalith::comm
