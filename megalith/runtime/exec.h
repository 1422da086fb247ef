#pragma once
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/build.h"
#include "megalith/base/error.h"
#include "megalith/runtime/graph.h"
#include "megalith/runtime/memory_plan.h"
#include "megalith/runtime/tracer.h"

namespace megalith {

/// `local`: other ranks have no part in the op, so it can be repeated on the same inputs. `communication`: a call
/// between ranks. `wait`: waits for such a call. `clock`: reads the time, so that each run gives another result.
enum class OpKind : std::uint8_t { local, communication, wait, clock };

/// The description of an op: enough to plan memory, record a graph, trace, and count bytes.
struct OpInfo {
  const char* name;
  std::initializer_list<Tensor> reads;
  std::initializer_list<Tensor> writes;
  OpKind kind = OpKind::local;
  Tensor scratch = {};  ///< also written, for the op alone: nothing reads it afterwards
};

/// What a new tensor holds before an op writes it. `nan`: NaN bytes.
enum class NewTensors : std::uint8_t { undefined, nan, zero };

/// Whether a repeated run must give the same bits, where that costs speed or memory on a GPU.
enum class Determinism : std::uint8_t { required, not_required };

/// A part of a planned phase: its numbers of tensors and ops.
struct PhaseExtent {
  std::size_t tensors = 0, ops = 0;
  PhaseExtent operator-(const PhaseExtent& from) const { return {tensors - from.tensors, ops - from.ops}; }
};

/// The call site of an op in a step, for messages and traces. -1: none.
struct CallSite {
  int chunk = -1, microbatch = -1;
  Index layer = -1;  ///< number of the model's layer
  StepPhase phase = StepPhase::other;
};
/// ", chunk 0, microbatch 1, layer 3", with the known parts.
std::string describe(const CallSite& place);

/// The only way to get memory and to run ops. The code of a layer is first recorded: nothing executes, and the
/// recording yields sizes, lifetimes and the plan. Then the same code runs in the same order with the planned
/// addresses. Without a plan (unit tests, single ops) tensors come from the heap and live until release().
class Exec {
 public:
  /// An Exec on a GPU uses that of the calling thread, with its own stream.
  explicit Exec(Device device = Device::cpu) : device_(device), stream_(device) {}
  /// Records into `recording`. No kernel runs, and no device is needed.
  Exec(Device device, Recording& recording) : device_(device), recording_(&recording) {}
  Exec(const Exec&) = delete;
  Exec& operator=(const Exec&) = delete;

  Device device() const { return device_; }
  Stream stream() const { return stream_.get(); }
  Determinism determinism() const { return determinism_; }
  void set_determinism(Determinism determinism) { determinism_ = determinism; }
  bool recording() const { return recording_ != nullptr; }
  /// From here on every new tensor is filled with NaN bytes, so that a read before the first write is noticed. Debug
  /// builds always do this.
  void poison_new_tensors() { fill_new_tensors(NewTensors::nan); }
  /// Returns what new tensors held before.
  NewTensors fill_new_tensors(NewTensors with) { return std::exchange(new_tensors_, with); }

  /// Starts a planned phase. The next tensors come from `phase` in its order, at these base addresses.
  void begin(const PhasePlan& phase, std::byte* saved, std::byte* scratch);
  /// Ends it. Throws InternalError if the code requested fewer tensors than when it was recorded.
  void end();

  /// The present position in the open phase.
  PhaseExtent phase_position() const { return {next_tensor_, next_op_}; }
  /// Sets the open phase back to an earlier position.
  void go_back(const PhaseExtent& position) {
    next_tensor_ = position.tensors;
    next_op_ = position.ops;
  }
  /// Skips a part of the open phase whose ops a graph runs.
  void skip(const PhaseExtent& extent) {
    next_tensor_ += extent.tensors;
    next_op_ += extent.ops;
  }

  /// Runs ops in the middle of a planned phase that are not part of it, for example ops of only some of its runs. They
  /// are not recorded, and must not request tensors.
  template <class Ops>
  void unplanned(Ops&& ops) {
    if (recording_ != nullptr) return;
    const PhasePlan* phase = std::exchange(phase_, nullptr);
    ops();
    phase_ = phase;
  }

  /// Memory for an intermediate result. Its contents are undefined, or those of fill_new_tensors().
  Tensor tensor(const Shape& shape, DType dtype);
  /// A tensor of the shape and dtype of `x`.
  Tensor tensor_like(const Tensor& x) { return tensor(x.shape(), x.dtype()); }

  /// Calls code() so that tensors which are recorded in it, and saved, are planned under an owner of their own.
  template <class Code>
  void owned_by(const char* owner, Code&& code) {
    const char* const before = std::exchange(owner_, owner);
    code();
    owner_ = before;
  }

  /// Runs kernel(ex, stream), or records or captures the op. A template, so that a run allocates nothing. A kernel that
  /// may be captured holds everything it needs by value.
  template <class Kernel>
  void run(const OpInfo& op, Kernel&& kernel) {
    if (recording_ != nullptr) {
      recording_->add_op(op.name, op.reads, op.writes, op.scratch);
      return;
    }
    if constexpr (build::is_debug) {
      check_order(op);
      check_capture(op);
    }
    if (capture_ != nullptr) {
      capture_->check(op);
      if (device_ == Device::cpu) return capture_->add(op, std::forward<Kernel>(kernel));
      capture_->add(op, {});
      return capture_->within(op.name, [&] { execute(op.name, kernel); });
    }
    if (watcher_ != nullptr) return watcher_->run(*this, op, Capture::Call(std::forward<Kernel>(kernel)));
    execute(op.name, kernel, op.kind);
  }
  /// Runs a kernel of run(), also a captured one.
  template <class Kernel>
  void execute(const char* name, Kernel&& kernel, OpKind kind = OpKind::local) {
    ++ops_run_;
    if (tracer_ != nullptr) {
      tracer_->begin(name, kind == OpKind::local ? call_site_.phase : StepPhase::communication, stream_.get());
    }
    kernel(*this, stream_.get());
    if (tracer_ != nullptr) tracer_->end(stream_.get());
  }

  /// The ops of ops(), as a graph that must be prepared before it is launched. They are captured and do not run. Within
  /// a phase of a plan or outside of one; without a tracer. Errors name the call site, and lose the captured ops.
  template <class Ops>
  Graph captured(Capture& capture, Ops&& ops) {
    begin_capture(capture);
    try {
      ops();
      return end_capture();
    } catch (Error& error) {
      capture.put_call_site(error);
      abandon_capture();
      throw;
    } catch (...) {
      abandon_capture();
      throw;
    }
  }
  /// Runs eagerly the code of which `graph` was captured, and compares every op with the graph's (GraphComparison).
  /// `name` is for messages.
  template <class Ops>
  void run_beside(const Graph& graph, const std::string& name, Ops&& ops) {
    GraphComparison comparison(graph, name);
    watched(comparison, [&] {
      ops();
      comparison.end();
    });
  }
  /// Runs ops(), whose eager ops go through `watcher`.
  template <class Ops>
  void watched(OpWatcher& watcher, Ops&& ops) {
    OpWatcher* const outer = std::exchange(watcher_, &watcher);
    try {
      ops();
    } catch (...) {
      watcher_ = outer;
      throw;
    }
    watcher_ = outer;
  }
  /// Null unless ops are being captured.
  Capture* capture() const { return capture_; }

  /// From here on every op is timed. Waits for all earlier work first. Null ends the timing. The tracer must live until
  /// then.
  void set_tracer(Tracer* tracer);
  /// Null unless ops are timed.
  Tracer* tracer() const { return tracer_; }

  /// The call site of all ops from here on.
  void set_call_site(const CallSite& site) { call_site_ = site; }
  void set_layer(Index layer) { call_site_.layer = layer; }
  const CallSite& call_site() const { return call_site_; }

  /// The number of ops so far: a position in a step.
  std::uint64_t ops_run() const { return ops_run_; }

  /// Frees the heap tensors of unplanned execution.
  void release() { heap_.clear(); }

  /// Copies `bytes` between host and device memory, in the order of the ops. Host memory must stay until the stream has
  /// completed the copy.
  void copy(void* to, const void* from, Index bytes) { copy(to, from, bytes, stream_.get()); }
  /// The same in the order of another stream.
  void copy(void* to, const void* from, Index bytes, Stream stream);
  /// Returns when all ops so far are complete.
  void synchronize();

  /// The state that a library needs on this device (handles, tables). T(Exec&) makes it at its first use, and it is
  /// kept.
  template <class T>
  T& backend() {
    for (const auto& [key, slot] : backends_) {
      if (key == &backend_key<T>) return *static_cast<T*>(slot.get());
    }
    backends_.emplace_back(&backend_key<T>, std::make_shared<T>(*this));
    return *static_cast<T*>(backends_.back().second.get());
  }

 private:
  /// `capture` must live until end_capture() or abandon_capture().
  void begin_capture(Capture& capture);
  Graph end_capture();
  void abandon_capture() noexcept;
  template <class T>
  static inline char backend_key = 0;  ///< its address identifies T

  void check_order(const OpInfo& op);
  void check_capture(const OpInfo& op) const;
  [[noreturn]] void refuse_change(const char* where, const std::string& what) const;
  void fill_new(const Tensor& tensor);

  Device device_;
  Determinism determinism_ = Determinism::required;
  OwnedStream stream_;
  Recording* recording_ = nullptr;
  Tracer* tracer_ = nullptr;
  CallSite call_site_;
  const char* owner_ = kActivationsOwner;
  Capture* capture_ = nullptr;
  OpWatcher* watcher_ = nullptr;
  const PhasePlan* phase_ = nullptr;
  std::size_t next_tensor_ = 0, next_op_ = 0;
  std::uint64_t ops_run_ = 0;
  std::byte* saved_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::vector<Buffer> heap_;
  std::vector<std::pair<const void*, std::shared_ptr<void>>> backends_;
  NewTensors new_tensors_ = build::is_debug ? NewTensors::nan : NewTensors::undefined;
};

}  // namespace megalith
