#include "megalith/comm/threads/room.h"

#include <algorithm>
#include <array>

#include "megalith/base/error.h"

namespace megalith::comm {

Room::Room(Hub& hub, std::span<const int> world_ranks)
    : hub_(hub),
      world_ranks_(world_ranks.begin(), world_ranks.end()),
      arrivals_(std::make_unique<std::atomic<std::uint64_t>[]>(world_ranks.size())),
      postings_(2 * world_ranks.size()),
      staging_(2 * world_ranks.size() * kStagedBytes) {}

bool Room::is_of(std::span<const int> world_ranks) const { return std::ranges::equal(world_ranks_, world_ranks); }

/// Returns true for the last member, which has completed the barrier for the others.
bool Room::arrive(const Channel& channel, const Call& call, std::uint64_t round) {
  arrivals_[static_cast<std::size_t>(channel.rank())].store(round + 1, std::memory_order_relaxed);
  const std::uint64_t state = state_.fetch_add(1, std::memory_order_acq_rel) + 1;
  if ((state & kBroken) != 0) throw_absent(channel, call, {Outcome::failed}, round);
  if ((state & kCount) != static_cast<std::uint64_t>(size())) return false;
  state_.store((round + 1) * kRound, std::memory_order_release);
  for (const int rank : world_ranks_) {
    if (rank != channel.world_rank()) hub_.unpark(rank);
  }
  return true;
}

/// Breaks the barrier, unless all have arrived in the meantime: then it counts, and the result is false.
bool Room::withdraw(const Channel& channel, std::uint64_t round) {
  std::uint64_t state = state_.load(std::memory_order_acquire);
  while (state / kRound == round) {
    if ((state & kBroken) != 0) return true;
    if ((state & kCount) == static_cast<std::uint64_t>(size())) break;
    if (state_.compare_exchange_weak(state, state | kBroken, std::memory_order_acq_rel)) return true;
  }
  hub_.wait_until(channel.world_rank(), [&] { return complete(round); });
  return false;
}

/// Writes who has not come into the position of this member.
void Room::await_absent(const Channel& channel, std::uint64_t round) {
  std::array<int, Position::kMaxAwaited> first{};
  std::size_t count = 0;
  for (std::size_t i = 0; i < world_ranks_.size(); ++i) {
    if (arrivals_[i].load(std::memory_order_relaxed) > round) continue;
    if (count < first.size()) first[count] = world_ranks_[i];
    ++count;
  }
  hub_.position(channel.world_rank())
      .await(std::span(first).first(std::min(count, first.size())), static_cast<int>(count));
}

void Room::first_barrier(const Channel& channel, const Call& call, std::uint64_t& round) {
  const std::uint64_t present = round++;
  if (arrive(channel, call, present)) return;
  const auto someone_ended = [&] {
    for (std::size_t i = 0; i < world_ranks_.size(); ++i) {
      if (hub_.ended(world_ranks_[i]) && arrivals_[i].load(std::memory_order_relaxed) <= present) return true;
    }
    return false;
  };
  const Waited waited = hub_.wait(
      channel.world_rank(), channel, call, [&] { return complete(present); }, someone_ended,
      [&] { await_absent(channel, present); });
  if (waited.outcome != Outcome::ready && withdraw(channel, present)) throw_absent(channel, call, waited, present);
}

void Room::second_barrier(const Channel& channel, std::uint64_t& round) {
  const std::uint64_t present = round++;
  const Call none;
  if (arrive(channel, none, present)) return;
  hub_.wait_until(channel.world_rank(), [&] { return complete(present); });
}

void Room::throw_absent(const Channel& channel, const Call& call, const Waited& waited, std::uint64_t round) const {
  if (waited.outcome == Outcome::failed) {
    const std::string failure = hub_.failure();
    throw AbortedError(channel.where(call.op) + (failure.empty() ? "another member gave up waiting" : failure));
  }
  RankList absent;
  for (std::size_t i = 0; i < world_ranks_.size(); ++i) {
    if (arrivals_[i].load(std::memory_order_relaxed) > round) continue;
    absent.add(world_ranks_[i], hub_.whereabouts(world_ranks_[i]));
  }
  channel.throw_hang(call, waited.seconds, absent.empty() ? "a member that came too late" : absent.text());
}

Mailbox& Room::mailbox(int from, int to, int lane) {
  const std::lock_guard lock(mutex_);
  return mailboxes_[{from, to, lane}];
}

}  // namespace megalith::comm
