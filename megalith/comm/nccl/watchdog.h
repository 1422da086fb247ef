#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "megalith/comm/world.h"

namespace megalith::comm {

class NcclChannel;

/// Watches the NCCL calls of one rank from a thread of its own, because the rank's thread may sit in a wait of CUDA,
/// which has no timeout and hears of nothing. When another rank fails, a call is overdue or a communicator reports an
/// error, it aborts all communicators of the rank: their kernels end, the streams drain, the wait returns, and
/// check_health() says why. Looks 20 times a second; costs the rank's thread nothing but short locks.
class Watchdog {
 public:
  /// For the GPU that the calling thread uses. `host` says whether another rank has failed, and must outlive this.
  Watchdog(const World& host, double timeout_s);
  ~Watchdog();

  /// Before its communicators are made, so that even that can be aborted. Keeps the channel.
  void add(std::shared_ptr<NcclChannel> channel);
  /// Work of this stream, which replays calls that were captured, is waited for too when communication ends.
  void add(Stream replays);
  void remove(Stream replays) noexcept;
  /// HostWait, by the rank's thread: it waits from here on, or no more. Waits may lie within each other.
  void begin_host_wait();
  void end_host_wait() noexcept;
  /// Throws what has ended communication: AbortedError, HangError or BackendError. By then nothing is in flight, unless
  /// it could not be ended within kDrain_s of the failure.
  void check_health() const;
  /// This rank communicates no more: what is in flight ends, as its memory is about to go.
  void give_up() noexcept;
  /// Waits until what was submitted has ended, then frees the communicators. Called once, by the rank's thread, when no
  /// CUDA graph holds calls of theirs any more (NCCL waits for that).
  void close() noexcept;

 private:
  void watch();
  void look();
  void fail(std::exception_ptr verdict) noexcept;
  void drain() const noexcept;
  bool is_idle(const std::vector<std::shared_ptr<NcclChannel>>& channels) const;
  std::vector<std::shared_ptr<NcclChannel>> channels() const;
  void look_at_host_wait() const;

  /// A call that is overdue says more than a wait for it, so it has this much longer to be seen first.
  static constexpr double kAfterCalls_s = 1;
  static constexpr double kNoWait = -1;
  static constexpr double kDrain_s = 5;
  /// From the failure on; many times what a kernel between GPUs needs that waits for nobody.
  static constexpr double kGrace_s = 0.1;

  const World& host_;
  double timeout_s_;
  int gpu_ = 0;
  std::atomic<bool> failed_{false}, aborted_{false};
  int host_waits_ = 0;  // within each other; the rank's thread alone
  std::atomic<double> host_waits_since_s_{kNoWait};
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  bool closing_ = false;
  std::exception_ptr verdict_;
  double failed_at_s_ = 0;
  std::vector<std::shared_ptr<NcclChannel>> channels_;
  std::vector<Stream> replays_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace megalith::comm
