#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "megalith/base/clock.h"
#include "megalith/comm/patience.h"
#include "megalith/comm/positions.h"
#include "megalith/comm/world.h"

namespace megalith::comm {

class Room;

/// Puts one rank's thread to sleep until another one has changed something it may wait for. A futex: the waker pays a
/// system call only when the sleeper sleeps.
class Parker {
 public:
  /// Called after the change. Never blocks.
  void unpark();
  /// To be read before the condition is checked; a change after it ends park(seen) at once.
  std::uint32_t epoch() const { return epoch_.load(std::memory_order_seq_cst); }
  /// Returns after an unpark() since epoch() gave `seen`, after `seconds`, or for no reason.
  void park(std::uint32_t seen, double seconds);

 private:
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<bool> asleep_{false};
};

enum class Outcome { ready, failed, hopeless, timed_out };
struct Waited {
  Outcome outcome = Outcome::ready;
  double seconds = 0;
};

/// What the rank threads of one run_ranks() share: who failed, who has ended, who waits for what, and their rooms.
class Hub {
 public:
  Hub(int size, const WorldOptions& options);

  int size() const { return static_cast<int>(seats_.size()); }
  const std::shared_ptr<Positions>& positions() const { return positions_; }
  PositionWriter& position(int rank) { return positions_->writer(rank); }

  /// The first failure counts. Wakes all.
  void fail(int rank, const std::string& reason);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// "rank 2 failed first: its error"
  std::string failure() const;
  int failed_rank() const;
  /// The rank's body has returned: whoever waits for it waits in vain.
  void end(int rank);
  bool ended(int rank) const { return seat(rank).ended.load(std::memory_order_acquire); }

  void unpark(int rank) { seat(rank).parker.unpark(); }
  /// "waiting in recv(...) of group pp", "ended" or "in no call": of another rank, for messages.
  std::string whereabouts(int rank) const;

  /// Blocks `rank` until ready(), the failure of any rank, hopeless() (what is awaited cannot come any more), or the
  /// timeout. await() writes for whom it waits into its position.
  template <class Ready, class Hopeless, class Await>
  Waited wait(int rank, const Channel& channel, const Call& call, Ready&& ready, Hopeless&& hopeless, Await&& await);
  /// The same without a way out: for what other ranks are already doing and finish without waiting for anybody.
  template <class Ready>
  void wait_until(int rank, Ready&& ready);

  /// The shared memory of a group: made by the member that comes first.
  std::shared_ptr<Room> room(const Channel& channel);

 private:
  struct alignas(64) Seat {
    Parker parker;
    std::atomic<bool> ended{false};
    mutable std::mutex mutex;          // of what follows: whoever reads them is another rank with an error to explain
    const Channel* channel = nullptr;  // null: in no call
    Call call;
    std::string gave_up_in;  // once a wait has failed: what it was, since its channel may go
  };
  Seat& seat(int rank) { return *seats_[static_cast<std::size_t>(rank)]; }
  const Seat& seat(int rank) const { return *seats_[static_cast<std::size_t>(rank)]; }
  void set_waiting(int rank, const Channel* channel, const Call& call);
  void give_up(int rank);
  /// Spins for some microseconds when every rank has a core, then gives the core to other threads a few times: true
  /// when ready. all_reduce of 64 bytes on 2 cores that other jobs kept busy (load 7 to 10, not interleaved, so rough):
  /// 4 ranks 9 to 11 us, blocking at once 21 to 35; 2 ranks 7 us, after 1000 spins and then blocking 1 to 37.
  template <class Ready>
  bool spin(Ready&& ready) const;

  static constexpr double kSignOfLife_s = 0.25;  ///< a rank that waits shows one so often

  double timeout_s_;
  bool cores_for_all_;
  std::vector<std::unique_ptr<Seat>> seats_;
  std::shared_ptr<Positions> positions_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // of what follows
  int failed_rank_ = -1;
  std::string failure_;
  std::map<std::uint64_t, std::shared_ptr<Room>> rooms_;  // by Channel::key()
};

/// Lets a core that spins rest.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Lets another thread have the core.
void give_way();

template <class Ready>
bool Hub::spin(Ready&& ready) const {
  constexpr int kSpins = 50, kYields = 20;
  for (int i = 0; i < (cores_for_all_ ? kSpins : 0); ++i) {
    if (ready()) return true;
    relax();
  }
  for (int i = 0; i < kYields; ++i) {
    if (ready()) return true;
    give_way();
  }
  return ready();
}

template <class Ready, class Hopeless, class Await>
Waited Hub::wait(int rank, const Channel& channel, const Call& call, Ready&& ready, Hopeless&& hopeless,
                 Await&& await) {
  if (spin(ready)) return {};
  set_waiting(rank, &channel, call);
  Patience patience(timeout_s_);
  Waited result;
  for (;;) {
    Parker& parker = seat(rank).parker;
    const std::uint32_t epoch = parker.epoch();
    const bool in_vain = hopeless();  // before ready(): what a rank did before it ended has then been seen
    if (ready()) break;
    const double now = monotonic_s();
    const bool is_over = patience.is_over(now);
    position(rank).alive(now);
    result.seconds = patience.waited_s(now);
    if (is_over || in_vain || result.seconds > kSignOfLife_s / 2) await();
    if (failed()) {
      result.outcome = Outcome::failed;
    } else if (in_vain) {
      result.outcome = Outcome::hopeless;
    } else if (is_over) {
      result.outcome = Outcome::timed_out;
    }
    if (result.outcome != Outcome::ready) {
      give_up(rank);
      return result;
    }
    parker.park(epoch, std::min(kSignOfLife_s, patience.left_s()));
  }
  set_waiting(rank, nullptr, call);
  return {};
}

template <class Ready>
void Hub::wait_until(int rank, Ready&& ready) {
  if (spin(ready)) return;
  for (;;) {
    Parker& parker = seat(rank).parker;
    const std::uint32_t epoch = parker.epoch();
    if (ready()) return;
    position(rank).alive(monotonic_s());
    parker.park(epoch, kSignOfLife_s);
  }
}

}  // namespace megalith::comm
