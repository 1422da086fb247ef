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

/// Observes the NCCL calls of one rank from its own thread. The rank's thread may be in a wait of CUDA, which has no
/// timeout and is not informed of failures. If another rank fails, a call is overdue or a communicator reports an
/// error, it aborts all communicators of the rank. Then their kernels end, the streams drain, the wait returns, and
/// check_health() throws the reason. It checks 20 times per second and costs the rank's thread only short locks.
class Watchdog {
 public:
  /// For the GPU of the calling thread. `host` reports whether another rank has failed, and must outlive this.
  Watchdog(const World& host, double timeout_s);
  ~Watchdog();

  /// Call it before the channel's communicators are made, so that even that can be aborted. Keeps the channel.
  void add(std::shared_ptr<NcclChannel> channel);
  /// When communication ends, work of this stream, which replays captured calls, is also waited for.
  void add(Stream replays);
  void remove(Stream replays) noexcept;
  /// HostWait, called by the rank's thread: it waits from here on, or no longer. Waits may be nested.
  void begin_host_wait();
  void end_host_wait() noexcept;
  /// Throws what has ended communication: AbortedError, HangError or BackendError. Nothing is in flight by then, unless
  /// it could not be ended within kDrain_s of the failure.
  void check_health() const;
  /// This rank communicates no more. Everything in flight ends, because its memory is about to be freed.
  void give_up() noexcept;
  /// Waits until submitted work has ended, then frees the communicators. The rank's thread calls it once, when no CUDA
  /// graph holds calls of them any more (NCCL waits for that).
  void close() noexcept;

 private:
  void watch();
  void look();
  void fail(std::exception_ptr verdict) noexcept;
  void drain() const noexcept;
  bool is_idle(const std::vector<std::shared_ptr<NcclChannel>>& channels) const;
  std::vector<std::shared_ptr<NcclChannel>> channels() const;
  void look_at_host_wait() const;
  /// In the rank's position.
  void show_life(double now_s) const noexcept;

  /// The error of an overdue call has more detail than that of a wait for it, so calls are checked this much earlier.
  static constexpr double kAfterCalls_s = 1;
  static constexpr double kNoWait = -1;
  static constexpr double kDrain_s = 5;
  /// From the failure on. Many times what a kernel between GPUs needs if it waits for nobody.
  static constexpr double kGrace_s = 0.1;

  const World& host_;
  double timeout_s_;
  int gpu_ = 0;
  std::atomic<bool> failed_{false}, aborted_{false};
  int host_waits_ = 0;  // nested; only the rank's thread uses it
  std::atomic<double> host_waits_since_s_{kNoWait};
  mutable std::mutex mutex_;  // guards the following members
  std::condition_variable wake_;
  bool closing_ = false;
  std::exception_ptr verdict_;
  double failed_at_s_ = 0;
  std::vector<std::shared_ptr<NcclChannel>> channels_;
  std::vector<Stream> replays_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace megalith::comm
