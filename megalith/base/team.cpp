#include "megalith/base/team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "megalith/base/host.h"
#include "megalith/base/host_limits.h"

namespace megalith {
namespace {

using Word = std::uint32_t;

/// Spins for a while. True when `ready`.
template <class Ready>
bool spin_until(Ready&& ready) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kLongest = std::chrono::microseconds(50);
  const Clock::time_point end = Clock::now() + kLongest;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (Clock::now() < end);
  return false;
}

/// Whether this thread runs a task: what it shares then, it does alone.
thread_local bool in_task = false;

/// Threads that begin with no signal but those that their own code raises: others' handlers belong to other threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, own);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// The threads beside the one that owns the team. A loop is open while they may join it; the owner closes it when no
/// task is left, and then waits for those inside alone.
class Team {
 public:
  explicit Team(int others) {
    const SignalsBlocked blocked;
    try {
      for (int i = 0; i < others; ++i) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {  // no more threads are allowed: fewer will do
    } catch (const std::bad_alloc&) {
    }
  }
  ~Team() {
    ending_ = true;
    begin_round();
    for (std::thread& thread : threads_) thread.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void run(Index tasks, CallTask call, const void* task) {
    tasks_ = tasks;
    call_ = call;
    task_ = task;
    failure_ = nullptr;
    next_.store(0, std::memory_order_relaxed);
    inside_.store(kOpen, std::memory_order_release);
    begin_round();
    work();
    inside_.fetch_sub(kOpen, std::memory_order_acq_rel);
    const auto empty = [this] { return inside_.load(std::memory_order_acquire) == 0; };
    if (!spin_until(empty)) {
      while (!empty()) {
        if (const Word seen = inside_.load(std::memory_order_acquire); seen != 0) inside_.wait(seen);
      }
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  static constexpr Word kOpen = Word{1} << 31;

  void begin_round() {
    round_.fetch_add(1);
    round_.notify_all();
  }

  void work() {
    in_task = true;
    for (Index i = 0; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) {
      try {
        call_(task_, i);
      } catch (...) {
        const std::lock_guard lock(failure_mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
    }
    in_task = false;
  }

  /// False once the loop is closed.
  bool join() {
    Word inside = inside_.load(std::memory_order_relaxed);
    while ((inside & kOpen) != 0) {
      if (inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  void serve() {
    for (Word seen = 0;;) {
      const auto called = [&] { return round_.load(std::memory_order_acquire) != seen; };
      if (!spin_until(called)) round_.wait(seen, std::memory_order_acquire);
      seen = round_.load(std::memory_order_acquire);
      if (ending_) return;
      if (!join()) continue;
      work();
      if (inside_.fetch_sub(1, std::memory_order_acq_rel) == 1) inside_.notify_one();  // the last of a closed loop
    }
  }

  // The loop. The owner writes it while nobody is inside; those inside read it.
  Index tasks_ = 0;
  CallTask call_ = nullptr;
  const void* task_ = nullptr;
  std::exception_ptr failure_;
  std::mutex failure_mutex_;
  std::atomic<bool> ending_{false};
  // Words that different threads write often lie in cache lines of their own.
  alignas(64) std::atomic<Index> next_{0};   ///< task
  alignas(64) std::atomic<Word> inside_{0};  ///< threads inside beside the owner, and kOpen while more may come
  alignas(64) std::atomic<Word> round_{0};   ///< loops so far
  std::vector<std::thread> threads_;
};

thread_local int asked_size = 0;  ///< 0: usable_cores()
thread_local std::unique_ptr<Team> team;

}  // namespace

int cores_within(int allowed, std::optional<double> quota) {
  return std::max(1, static_cast<int>(std::min<double>(allowed, std::ceil(quota.value_or(allowed)))));
}

int usable_cores() {
  static const int cores = cores_within(static_cast<int>(allowed_cores().size()), host_limits().cpu_quota);
  return cores;
}

TeamSize::TeamSize(int threads) : before_(asked_size) {
  asked_size = std::max(1, threads);
  team.reset();
}

TeamSize::~TeamSize() {
  asked_size = before_;
  team.reset();
}

int team_size() { return asked_size > 0 ? asked_size : usable_cores(); }

void share_tasks(Index tasks, CallTask call, const void* task) {
  if (tasks <= 1 || in_task || team_size() == 1) {
    for (Index i = 0; i < tasks; ++i) call(task, i);
    return;
  }
  if (!team) team = std::make_unique<Team>(team_size() - 1);
  team->run(tasks, call, task);
}

}  // namespace megalith
