#include "megalith/comm/threads/hub.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <thread>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/team.h"
#include "megalith/comm/threads/room.h"
#include "megalith/comm/threads/thread_world.h"

namespace megalith::comm {

void Parker::unpark() {
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst))
    ::syscall(SYS_futex, &epoch_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void Parker::park(std::uint32_t seen, double seconds) {
  static_assert(sizeof(epoch_) == sizeof(std::uint32_t));
  const double whole = std::floor(std::min(seconds, 1e6));
  const timespec wait{static_cast<time_t>(whole), static_cast<long>((std::min(seconds, 1e6) - whole) * 1e9)};
  asleep_.store(true, std::memory_order_seq_cst);
  ::syscall(SYS_futex, &epoch_, FUTEX_WAIT_PRIVATE, seen, &wait, nullptr, 0);
  asleep_.store(false, std::memory_order_relaxed);
}

void give_way() { ::sched_yield(); }

Hub::Hub(int size, const WorldOptions& options)
    : timeout_s_(options.timeout_s),
      cores_for_all_(size <= usable_cores()),
      positions_(std::make_shared<Positions>(size)) {
  for (int rank = 0; rank < size; ++rank) seats_.push_back(std::make_unique<Seat>());
}

void Hub::fail(int rank, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failed()) return;
    failed_rank_ = rank;
    failure_ = failure_text({rank, reason});
    failed_.store(true, std::memory_order_release);
  }
  for (const auto& other : seats_) other->parker.unpark();
}

std::string Hub::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

int Hub::failed_rank() const {
  const std::lock_guard lock(mutex_);
  return failed_rank_;
}

void Hub::end(int rank) {
  position(rank).end(monotonic_s());
  seat(rank).ended.store(true, std::memory_order_release);
  for (const auto& other : seats_) other->parker.unpark();
}

void Hub::set_waiting(int rank, const Channel* channel, const Call& call) {
  if (channel != nullptr) {
    position(rank).wait_in(channel->name(), call, monotonic_s());
  } else {
    position(rank).resume(monotonic_s());
  }
  Seat& own = seat(rank);
  const std::lock_guard lock(own.mutex);
  own.channel = channel;
  own.call = call;
  own.gave_up_in.clear();
}

/// A rank that failed stays listed, so that its peers' messages name the call in which it gave up.
void Hub::give_up(int rank) {
  const std::string text = whereabouts(rank);
  Seat& own = seat(rank);
  const std::lock_guard lock(own.mutex);
  own.channel = nullptr;
  own.gave_up_in = text;
}

std::string Hub::whereabouts(int rank) const {
  const Seat& other = seat(rank);
  if (ended(rank)) return "ended";
  const std::lock_guard lock(other.mutex);
  if (other.channel == nullptr) return other.gave_up_in.empty() ? "in no call" : other.gave_up_in;
  return str("waiting in ", describe(other.call), " of group ", other.channel->name());
}

std::shared_ptr<Room> Hub::room(const Channel& channel) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Room>& room = rooms_[channel.key()];
  if (room == nullptr) room = std::make_shared<Room>(*this, channel.world_ranks());
  if (!room->is_of(channel.world_ranks())) {
    throw InternalError(str("[group] ", channel.name(), ": its key is that of another group; rename it"));
  }
  return room;
}

}  // namespace megalith::comm
