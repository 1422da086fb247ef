#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace megalith::data {

/// Threads take blocks in order, work on them in parallel, and the results are written in order: a block's ticket is
/// its turn. So what is written is the same for any number of threads. The caller is one of the threads.
///   next()            the next block in an std::optional, nothing at the end; one thread at a time
///   make_worker()     once per thread; its result is called as worker(block, result) and may keep scratch memory
///   write(result)     in the order of the blocks; one thread at a time
/// A result whose turn has not come waits in a queue while its thread takes the next block. So neither a slow block nor
/// a slow write() stops the others at once. `result` is one of an earlier block or new: worker() overwrites all of it.
/// Throws the failure that comes first in the order of the blocks. Memory: one block and three results per thread.
template <class Result, class Next, class MakeWorker, class Write>
class OrderedWork {
 public:
  OrderedWork(Next next, MakeWorker make_worker, Write write)
      : next_(std::move(next)), make_worker_(std::move(make_worker)), write_(std::move(write)) {}

  void run(int threads) {
    queue_.resize(threads == 1 ? 1 : 2 * static_cast<std::size_t>(threads));
    {
      std::vector<std::jthread> helpers;
      for (int i = 1; i < threads; ++i) helpers.emplace_back([this] { work(); });
      work();
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  struct Finished {
    Result result{};
    std::exception_ptr failure;
    bool is_there = false;
  };

  void work() {
    auto worker = make_worker_();
    Result result{};
    for (;;) {
      std::uint64_t ticket = 0;
      std::exception_ptr failure;
      decltype(next_()) block;
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
      }
      if (block) {
        try {
          worker(*block, result);
        } catch (...) {
          failure = std::current_exception();
        }
      }
      block.reset();
      if (!queue(ticket, result, failure)) return;
    }
  }

  /// Swaps the result with an old one of the queue. The first thread that finds a result due writes all that are. False
  /// when the work is over. Tickets below a failing one have all been taken, so the failure that is kept is the first
  /// in the order of the blocks.
  bool queue(std::uint64_t ticket, Result& result, const std::exception_ptr& failure) {
    std::unique_lock lock(write_mutex_);
    changed_.wait(lock, [&] { return ticket < turn_ + queue_.size() || failure_; });
    if (failure_) return false;
    Finished& mine = queue_[ticket % queue_.size()];
    std::swap(mine.result, result);
    mine.failure = failure;
    mine.is_there = true;
    if (is_writing_) return true;
    is_writing_ = true;
    while (!failure_) {
      Finished& due = queue_[turn_ % queue_.size()];  // no other thread's place before turn_ moves on
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
      lock.lock();
      due.is_there = false;
      failure_ = failed;
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

  std::mutex write_mutex_;  // guards these; write_ is guarded by is_writing_
  std::condition_variable changed_;
  std::vector<Finished> queue_;  // of tickets turn_ .. turn_ + size - 1
  std::uint64_t turn_ = 0;
  bool is_writing_ = false;
  std::exception_ptr failure_;
};

template <class Result, class Next, class MakeWorker, class Write>
void work_in_order(int threads, Next next, MakeWorker make_worker, Write write) {
  OrderedWork<Result, Next, MakeWorker, Write>(std::move(next), std::move(make_worker), std::move(write)).run(threads);
}

}  // namespace megalith::data
