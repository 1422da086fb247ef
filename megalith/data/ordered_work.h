#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "megalith/base/host_limits.h"
#include "megalith/base/started_threads.h"
#include "megalith/base/text.h"

namespace megalith::data {

/// Threads take blocks in order, work on them in parallel, and write the results in order. So the output is the same
/// for any number of threads. The number of a block in the order is its ticket. The caller is one of the threads.
///   next()            the next block in an std::optional, nothing at the end; one thread at a time
///   make_worker()     once per thread; its result is called as worker(block, result) and may keep scratch memory
///   write(result)     in the order of the blocks; one thread at a time
/// A result whose turn has not come waits in a queue while its thread takes the next block. So neither a slow block
/// nor a slow write() stops the others at once. `result` may hold the result of an earlier block: worker() overwrites
/// all of it.
/// Throws the first failure in the order of the blocks. If a thread cannot work at all, this counts as a failure of
/// the block that it would have taken. If the system starts fewer threads, those do the work.
/// Memory: one block and three results per thread. Only one block over 4 MiB is in work at a time, and its
/// memory is freed after it. The size is held_bytes(block), if there is such a function. So the memory of long lines
/// does not grow with the number of threads.
template <class Result, class Next, class MakeWorker, class Write>
class OrderedWork {
 public:
  OrderedWork(Next next, MakeWorker make_worker, Write write)
      : next_(std::move(next)), make_worker_(std::move(make_worker)), write_(std::move(write)) {}

  void run(int threads) {
    queue_.resize(threads == 1 ? 1 : 2 * static_cast<std::size_t>(threads));
    {
      const StartedThreads helpers(threads - 1, [this] { work_or_fail(); });
      work_or_fail();
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  enum class Size { usual, large };
  struct Finished {
    Result result{};
    std::exception_ptr failure;
    bool is_there = false;
    Size size = Size::usual;
  };

  void work_or_fail() {
    try {
      work();
    } catch (...) {  // no memory for a worker
      const std::lock_guard lock(write_mutex_);
      if (!failure_) failure_ = std::current_exception();
      changed_.notify_all();
    }
  }

  template <class Block>
  static bool is_large(const Block& block) {
    constexpr std::size_t kLarge = std::size_t{4} << 20;
    if constexpr (requires { held_bytes(block); })
      return held_bytes(block) > kLarge;
    else
      return false;
  }

  /// The factor covers copies of the text, its ids and the output, while they grow.
  template <class Block>
  static void require_memory_for(const Block& block) {
    constexpr Index kPerByte = 12;
    if constexpr (requires { held_bytes(block); })
      require_memory(host_limits(), kPerByte * static_cast<Index>(held_bytes(block)),
                     "a line or text of " + human_bytes(static_cast<Index>(held_bytes(block))),
                     "lower the limit on a line (--max-line, data.max_line), or use a machine or a control group with "
                     "more");
  }

  void work() {
    std::optional<decltype(make_worker_())> worker;
    worker.emplace(make_worker_());
    Result result{};
    for (;;) {
      std::uint64_t ticket = 0;
      std::exception_ptr failure;
      decltype(next_()) block;
      // Held from the reading of a large block until its result is written. Blocks take it in their order, so no
      // earlier block waits for a later one.
      std::unique_lock<std::mutex> alone;
      {
        const std::lock_guard lock(read_mutex_);
        if (no_more_) return;
        ticket = tickets_++;
        try {
          block = next_();
        } catch (...) {
          failure = std::current_exception();
        }
        no_more_ = !block;
        if (!block && !failure) return;
        if (block && is_large(*block)) alone = std::unique_lock(large_mutex_);
      }
      if (block) {
        try {
          if (alone.owns_lock()) require_memory_for(*block);
          (*worker)(*block, result);
        } catch (...) {
          failure = std::current_exception();
        }
      }
      block.reset();
      if (!queue(ticket, result, failure, alone.owns_lock() ? Size::large : Size::usual)) return;
      if (!alone.owns_lock()) continue;
      if (!wait_until_written(ticket)) return;
      give_back(result);
      worker.emplace(make_worker_());
    }
  }

  /// Frees the memory, which assigning an empty result would keep.
  static void give_back(Result& result) {
    Result fresh{};
    std::swap(result, fresh);
  }

  /// False if the work has ended.
  bool wait_until_written(std::uint64_t ticket) {
    std::unique_lock lock(write_mutex_);
    changed_.wait(lock, [&] { return turn_ > ticket || failure_; });
    return !failure_;
  }

  /// Swaps the result with an old one of the queue. The first thread that finds a due result writes all due results.
  /// Returns false if the work has ended. All tickets before a failing one have been taken, so the failure that is
  /// kept is the first in the order of the blocks.
  bool queue(std::uint64_t ticket, Result& result, const std::exception_ptr& failure, Size size) {
    std::unique_lock lock(write_mutex_);
    changed_.wait(lock, [&] { return ticket < turn_ + queue_.size() || failure_; });
    if (failure_) return false;
    Finished& mine = queue_[ticket % queue_.size()];
    std::swap(mine.result, result);
    mine.failure = failure;
    mine.is_there = true;
    mine.size = size;
    if (is_writing_) return true;
    is_writing_ = true;
    while (!failure_) {
      Finished& due = queue_[turn_ % queue_.size()];  // other threads use this entry only after turn_ moves on
      if (!due.is_there) break;
      lock.unlock();
      std::exception_ptr failed = due.failure;
      if (!failed) {
        try {
          write_(due.result);
        } catch (...) {
          failed = std::current_exception();
        }
      }
      if (due.size == Size::large) give_back(due.result);
      lock.lock();
      due.is_there = false;
      if (failed && !failure_) failure_ = failed;  // making a worker may have failed meanwhile
      ++turn_;
      changed_.notify_all();
    }
    is_writing_ = false;
    return !failure_;
  }

  Next next_;
  MakeWorker make_worker_;
  Write write_;

  std::mutex read_mutex_;  // guards next_ and these
  std::uint64_t tickets_ = 0;
  bool no_more_ = false;

  std::mutex large_mutex_;  // held by the thread with a large block

  std::mutex write_mutex_;  // guards these; write_ is guarded by is_writing_
  std::condition_variable changed_;
  std::vector<Finished> queue_;  // results of tickets turn_ .. turn_ + size - 1
  std::uint64_t turn_ = 0;
  bool is_writing_ = false;
  std::exception_ptr failure_;
};

template <class Result, class Next, class MakeWorker, class Write>
void work_in_order(int threads, Next next, MakeWorker make_worker, Write write) {
  OrderedWork<Result, Next, MakeWorker, Write>(std::move(next), std::move(make_worker), std::move(write)).run(threads);
}

}  // namespace megalith::data
