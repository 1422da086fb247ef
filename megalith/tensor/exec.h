#pragma once
#include <initializer_list>
#include <vector>

#include "megalith/tensor/memory_plan.h"

namespace megalith {

/// An order of execution on a device. On the CPU there is one, the calling thread, and the handle is null.
struct Stream {
  void* handle = nullptr;
};

/// What an op tells about itself: enough to plan memory, record a graph, trace, and count bytes.
struct OpInfo {
  const char* name;
  std::initializer_list<Tensor> reads;
  std::initializer_list<Tensor> writes;
};

/// The one way to get memory and to run anything. The same layer code is recorded once (nothing executes: this yields
/// sizes, lifetimes and the plan), then runs with the planned addresses in the same order. Without a plan (unit tests,
/// one-off work) tensors come from the heap and live until release().
class Exec {
 public:
  explicit Exec(Device device = Device::cpu) : device_(device) {}
  /// Records into `recording`; no kernel runs.
  Exec(Device device, Recording& recording) : device_(device), recording_(&recording) {}
  Exec(const Exec&) = delete;
  Exec& operator=(const Exec&) = delete;

  Device device() const { return device_; }
  bool recording() const { return recording_ != nullptr; }
  /// From here on every new tensor is filled with NaN bytes, so that a read before a write cannot pass unseen. Debug
  /// builds always do.
  void poison_new_tensors() { poison_ = true; }

  /// Starts a planned phase: the next tensors come from `phase` in its order, at these base addresses.
  void begin(const PhasePlan& phase, std::byte* saved, std::byte* scratch);
  /// Ends it. Throws InternalError when the code asked for fewer tensors than it did when recorded.
  void end();

  /// Memory for an intermediate; contents undefined.
  Tensor tensor(const Shape& shape, DType dtype);

  /// Runs kernel(ex, stream), or records the op. A template, so that running allocates nothing.
  template <class Kernel>
  void run(const OpInfo& op, Kernel&& kernel) {
    if (recording_ != nullptr) {
      recording_->add_op(op.name, op.reads, op.writes);
      return;
    }
#ifndef NDEBUG
    check_order(op);
#endif
    ++ops_run_;
    kernel(*this, stream_);
  }

  /// Ops run so far: says where in a step something happens.
  std::uint64_t ops_run() const { return ops_run_; }

  /// Frees the heap tensors of unplanned execution.
  void release() { heap_.clear(); }

 private:
  void check_order(const OpInfo& op);

  Device device_;
  Stream stream_;
  Recording* recording_ = nullptr;
  const PhasePlan* phase_ = nullptr;
  std::size_t next_tensor_ = 0, next_op_ = 0;
  std::uint64_t ops_run_ = 0;
  std::byte* saved_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::vector<Buffer> heap_;
#ifdef NDEBUG
  bool poison_ = false;
#else
  bool poison_ = true;
#endif
};

}  // namespace megalith
