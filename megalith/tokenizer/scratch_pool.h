#pragma once
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace megalith::tokenizer {

/// Working memory for calls from any number of threads. Each call borrows one Scratch, so there are as many as there
/// were concurrent calls.
template <class Scratch>
class ScratchPool {
 public:
  class Borrowed {
   public:
    Borrowed(ScratchPool& pool, std::unique_ptr<Scratch> scratch) : pool_(pool), scratch_(std::move(scratch)) {}
    ~Borrowed() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(std::move(scratch_));
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Scratch* operator->() { return scratch_.get(); }
    Scratch& operator*() { return *scratch_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<Scratch> scratch_;
  };

  /// make() returns a std::unique_ptr<Scratch>. It is called if none is free.
  template <class Make>
  Borrowed borrow(const Make& make) {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Scratch> scratch = std::move(free_.back());
        free_.pop_back();
        return {*this, std::move(scratch)};
      }
    }
    return {*this, make()};
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

}  // namespace megalith::tokenizer
