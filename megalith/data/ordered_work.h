#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace megalith::data {

/// Threads take blocks in order, work on them side by side, and hand the results over in order: a block's ticket is its
/// turn. So what is written is the same for any number of threads. The caller is one of the threads.
///   next()            the next block in an std::optional, nothing at the end; one thread at a time
///   make_worker()     once per thread; its result is called as worker(block, result) and may keep scratch memory
///   write(result)     in the order of the blocks; one thread at a time
/// Throws the failure that comes first in the order of the blocks. Memory: one block and one result per thread.
template <class Result, class Next, class MakeWorker, class Write>
class OrderedWork {
 public:
  OrderedWork(Next next, MakeWorker make_worker, Write write)
      : next_(std::move(next)), make_worker_(std::move(make_worker)), write_(std::move(write)) {}

  void run(int threads) {
    {
      std::vector<std::jthread> helpers;
      for (int i = 1; i < threads; ++i) helpers.emplace_back([this] { work(); });
      work();
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void work() {
    auto worker = make_worker_();
    Result result;
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
      if (!write_in_turn(ticket, result, failure)) return;
    }
  }

  /// False when the work is over. Tickets below a failing one have all been taken, so the failure that is kept is the
  /// first in the order of the blocks.
  bool write_in_turn(std::uint64_t ticket, Result& result, std::exception_ptr failure) {
    std::unique_lock lock(write_mutex_);
    my_turn_.wait(lock, [&] { return turn_ == ticket || failure_; });
    if (failure_) return false;
    if (!failure) {
      try {
        write_(result);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    failure_ = failure;
    ++turn_;
    my_turn_.notify_all();
    return !failure;
  }

  Next next_;
  MakeWorker make_worker_;
  Write write_;

  std::mutex read_mutex_;  // guards next_ and these
  std::uint64_t tickets_ = 0;
  bool no_more_ = false;

  std::mutex write_mutex_;  // guards write_ and these
  std::condition_variable my_turn_;
  std::uint64_t turn_ = 0;
  std::exception_ptr failure_;
};

template <class Result, class Next, class MakeWorker, class Write>
void work_in_order(int threads, Next next, MakeWorker make_worker, Write write) {
  OrderedWork<Result, Next, MakeWorker, Write>(std::move(next), std::move(make_worker), std::move(write)).run(threads);
}

}  // namespace megalith::data
