#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

#include "megalith/comm/threads/hub.h"

namespace megalith::comm {

/// What a member exposes to the others for one collective. Pointers are into its own memory.
struct alignas(64) Posting {
  Call call;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  const Index* send_bytes = nullptr;  // all_to_all: one per member
  const Index* recv_bytes = nullptr;
};

/// A posted send or receive. The rank that posts second copies.
struct Message {
  Call call;
  std::byte* data = nullptr;
  Index bytes = 0;
  int world_rank = 0;             // world rank of its owner
  std::atomic<bool> done{false};  // set by the rank that posts second, as its last action
};

/// The in-order queue of one (sender, receiver, lane). Only sends or only receives wait in it at a time.
struct Mailbox {
  // How many wait at once depends on the stages' speed. It reserves space from the start, so that no later step grows
  // it.
  Mailbox() { waiting.reserve(256); }
  std::mutex mutex;
  std::vector<Message*> waiting;  // oldest first; short, so erasing the front is cheap, and it never shrinks
};

/// The shared memory of one group: a barrier that can be left when it fails, postings, and mailboxes.
///
/// Postings and staging are double-buffered by the parity of the collective. A member may overwrite those of collective
/// k only in k + 2. That begins after all have arrived in k + 1, hence have left k.
class Room {
 public:
  /// Messages of at most this many bytes are copied into staging. This saves the second barrier that zero-copy needs:
  /// all may leave as soon as all have arrived. all_reduce was measured on 2 cores (EPYC 7003, real-time priority),
  /// staged against direct. 2 ranks took 0.5 against 0.6 us for 64 bytes, 1.1 against 0.8 for 4 KiB. 4 ranks took 4.1
  /// against 7.3 us, and 6.3 against 8.0.
  static constexpr Index kStagedBytes = 1024;

  Room(Hub& hub, std::span<const int> world_ranks);
  bool is_of(std::span<const int> world_ranks) const;
  int size() const { return static_cast<int>(world_ranks_.size()); }

  Posting& posting(int parity, int member) { return postings_[at(parity, member)]; }
  std::byte* staging(int parity, int member) { return staging_.data() + at(parity, member) * kStagedBytes; }

  /// Waits for all members. Throws AbortedError or HangError. After that nobody passes this or any later barrier, so
  /// that the memory that this member exposed is not accessed. `round` counts this member's barriers.
  void first_barrier(const Channel& channel, const Call& call, std::uint64_t& round);
  /// The second barrier of a collective, at which all arrive without waiting for anybody in between.
  void second_barrier(const Channel& channel, std::uint64_t& round);

  Mailbox& mailbox(int from, int to, int lane);

 private:
  // The barrier's state: number of completed barriers, a mark that one has failed, members arrived in the present one.
  static constexpr std::uint64_t kBroken = 1u << 31, kCount = kBroken - 1, kRound = std::uint64_t{1} << 32;

  std::size_t at(int parity, int member) const {
    const int place = parity * size() + member;
    return static_cast<std::size_t>(place);
  }
  bool arrive(const Channel& channel, const Call& call, std::uint64_t round);
  bool complete(std::uint64_t round) const { return state_.load(std::memory_order_acquire) / kRound > round; }
  bool withdraw(const Channel& channel, std::uint64_t round);
  void await_absent(const Channel& channel, std::uint64_t round);
  [[noreturn]] void throw_absent(const Channel& channel, const Call& call, const Waited& waited,
                                 std::uint64_t round) const;

  Hub& hub_;
  std::vector<int> world_ranks_;
  alignas(64) std::atomic<std::uint64_t> state_{0};
  std::unique_ptr<std::atomic<std::uint64_t>[]> arrivals_;  // per member: barriers at which it has arrived
  std::vector<Posting> postings_;
  std::vector<std::byte> staging_;
  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, Mailbox> mailboxes_;
};

}  // namespace megalith::comm
