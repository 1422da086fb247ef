#pragma once
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/channel.h"

namespace megalith::comm {

/// The messages of one channel that are in flight, as a transport keeps them. A slot is reused once its ticket was
/// given back, so the table grows in the first steps only. Slots never move.
template <class Slot>
class TicketTable {
 public:
  /// A free slot for `call`. Throws InternalError when too many are in flight.
  std::pair<Slot&, Ticket> take(const Channel& channel, const Call& call) {
    if (free_.empty()) {
      if (static_cast<std::int64_t>(entries_.size()) == kLimit) {
        throw InternalError(
            str(channel.where(call.op), "more than ", kLimit, " messages are in flight: wait for them"));
      }
      entries_.emplace_back();
      free_.reserve(entries_.size());
      free_.push_back(static_cast<int>(entries_.size()) - 1);
    }
    const int index = free_.back();
    free_.pop_back();
    Entry& entry = entries_[static_cast<std::size_t>(index)];
    entry.serial = next_serial_++;
    return {entry.slot, {entry.serial * kLimit + index, call.entry}};
  }

  /// Throws InternalError for a ticket that was given back.
  Slot& at(const Channel& channel, Ticket ticket) {
    if (Slot* slot = find(ticket)) return *slot;
    throw InternalError(
        str("[wait] group ", channel.name(), ": ticket ", ticket.id, " is not in flight: it was waited for before"));
  }

  /// Null for a ticket that was given back.
  Slot* find(Ticket ticket) noexcept {
    const auto index = static_cast<std::size_t>(ticket.id % kLimit);
    if (ticket.id < 0 || index >= entries_.size() || entries_[index].serial != ticket.id / kLimit) return nullptr;
    return &entries_[index].slot;
  }

  /// `ticket` is in flight. Its slot may be reused.
  void give_back(Ticket ticket) noexcept {
    retire(ticket);
    free_.push_back(static_cast<int>(ticket.id % kLimit));  // has the space: see take()
  }
  /// The same, but its slot is never reused, because something may still access it.
  void retire(Ticket ticket) noexcept { entries_[static_cast<std::size_t>(ticket.id % kLimit)].serial = -1; }

  template <class F>
  void for_each(F&& f) {
    for (Entry& entry : entries_) {
      if (entry.serial >= 0) f(entry.slot);
    }
  }

 private:
  static constexpr std::int64_t kLimit = 1 << 16;  // a ticket's id is serial * kLimit + index
  struct Entry {
    Slot slot;
    std::int64_t serial = -1;  // serial of the ticket; -1: free
  };

  std::deque<Entry> entries_;
  std::vector<int> free_;
  std::int64_t next_serial_ = 0;
};

}  // namespace megalith::comm
