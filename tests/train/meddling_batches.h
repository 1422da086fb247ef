#pragma once
#include <atomic>
#include <functional>
#include <span>
#include <thread>
#include <utility>

#include "tests/train/small_run.h"

namespace megalith::support {

/// Batches whose source changes something in the middle of a step, when it is asked for a microbatch. Not for graphs of
/// iterations, whose batches are all there before the step.
class MeddlingBatches final : public model::BatchSource {
 public:
  using Meddle = std::function<void(std::span<std::int32_t> tokens)>;

  explicit MeddlingBatches(Index vocab) : batches_(vocab) {}
  /// By the rank in whose step `meddle` is called: when it asks for the n-th time from now, with what it is given;
  /// `afterwards` when it asks the next time.
  void expect(Index n, Meddle meddle, Meddle afterwards = {}) const {
    left_ = n;
    meddle_ = std::move(meddle);
    afterwards_ = std::move(afterwards);
    thread_ = std::this_thread::get_id();
  }
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    batches_.fill(first_sample, count, batch);
    if (thread_ != std::this_thread::get_id()) return;
    --left_;
    if (left_ == 0) meddle_(batch.tokens);
    if (left_ == -1 && afterwards_) afterwards_(batch.tokens);
  }

 private:
  HashedBatches batches_;
  mutable std::atomic<std::thread::id> thread_;
  mutable Meddle meddle_, afterwards_;  // by that thread only, and left_ too
  mutable Index left_ = 0;
};

}  // namespace megalith::support
