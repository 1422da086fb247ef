#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/tensor/capture_guard.h"
#include "megalith/tensor/tensor.h"

namespace megalith {

class CapturedOps;
class Error;
class Exec;
struct OpInfo;
struct CallSite;

/// The contents of graphs, and the time to make them.
struct GraphStats {
  Index graphs = 0;
  Index ops = 0;             ///< captured ops of the Exec
  Index comm_calls = 0;      ///< the collectives and messages between ranks among them
  Index nodes = 0;           ///< what a launch submits to the device: on a GPU one or more for most ops
  double capture_s = 0;      ///< host time from the first op to a graph that can be launched
  double instantiate_s = 0;  ///< the part of it that makes this graph from the captured nodes and uploads it; 0 on the
                             ///< CPU

  GraphStats& operator+=(const GraphStats& other);
};

/// Ops that are captured once, with the addresses that they access, and launched any number of times. On a GPU this is
/// a CUDA graph. On the CPU it is a list of the calls, so that the rules of graphs are tested on any machine. A launch
/// repeats the work of the device and none of the host's. A cheap handle.
class Graph {
 public:
  Graph() = default;
  explicit operator bool() const { return body_ != nullptr; }
  /// Makes the captured ops launchable. On a GPU this takes memory and may wait for all work of the GPU. So it must not
  /// run while that work waits for other ranks. Errors name what was captured and its call site. Throws IoError if
  /// there is no memory.
  void prepare(Exec& ex);
  /// Runs in the order of `ex`. On a GPU the host only submits.
  void launch(Exec& ex) const;
  const GraphStats& stats() const { return stats_; }
  /// What was captured, and its call site, for messages.
  const std::string& what() const { return what_; }
  /// The tensors that the ops of a graph access, in the order of the ops, at the addresses of the capture. Throws
  /// InternalError for an empty graph.
  struct Touched {
    std::string_view op;
    std::span<const Tensor> reads, writes;
    Tensor scratch;      ///< memory of the op alone
    bool waits = false;  ///< for a call between ranks: it keeps its tensors in use, and writes nothing
    Index layer = -1;    ///< number of the model's layer in which it was captured; -1: none
  };
  std::vector<Touched> touched() const;

  /// The device's form of the captured ops.
  class Body {
   public:
    virtual ~Body() = default;
    virtual void prepare(Exec& ex) = 0;
    virtual void launch(Exec& ex) const = 0;
  };
  /// `what` ("training, chunk 0, microbatch 1, layer 3") is for messages.
  Graph(std::shared_ptr<Body> body, std::shared_ptr<const CapturedOps> ops, const GraphStats& stats, std::string what)
      : body_(std::move(body)), ops_(std::move(ops)), stats_(stats), what_(std::move(what)) {}

 private:
  friend class GraphComparison;
  std::shared_ptr<Body> body_;
  std::shared_ptr<const CapturedOps> ops_;
  GraphStats stats_;
  std::string what_;
};

/// Loads the kernels that captures themselves put into graphs, on the GPU of the calling thread. Call it before other
/// ranks are awaited, because loading may wait for the GPU.
void prepare_captures(Device device);

/// The target of a capture, of Exec::captured(). It refuses everything that a graph cannot
/// repeat, with an InternalError that names the call site and the op:
///  - a tensor outside the plan (its address is no longer valid at the launch), or an op on memory outside of `memory`
///  - other work of the thread that a graph cannot hold (tensor/device.h): waiting for the device, taking memory,
///    copies that are not ops
///  - waiting for a call between ranks that was started outside of the capture (comm::Pending::wait)
class Capture final : public CaptureGuard {
 public:
  using Call = std::function<void(Exec&, Stream)>;

  /// `name` ("training") is for messages. `memory`: all memory that graphs may access. It must keep its addresses until
  /// the graphs are gone.
  Capture(std::string name, std::vector<std::span<const std::byte>> memory);

  [[noreturn]] void refuse(std::string_view what, std::string_view why) const override;
  /// Different for each capture of the process, from 1. It distinguishes work that was begun within one capture from
  /// later captures.
  std::uint64_t number() const { return number_; }
  /// Puts the call site before the text of an error of captured code, unless the text has one or the error is another
  /// rank's.
  void put_call_site(Error& error) const;
  bool in_op() const override { return op_ != nullptr; }

  // For Exec.
  /// Captures the work of that device. From here on messages name the call site that `place` then has.
  void follow(const CallSite& place, Device device) {
    call_site_ = &place;
    device_ = device;
  }
  void check(const OpInfo& op) const;
  /// Adds an op. On a GPU it has no call, because the graph holds it.
  void add(const OpInfo& op, Call call);
  void add_poison(Call call);
  /// All requests of submit() to the device belong to an op. After an error the capture has ended.
  template <class Submit>
  void within(const char* op, Submit&& submit) {
    const char* outer = std::exchange(op_, op);
    submit();
    op_ = outer;
  }
  Graph end(Device device, Stream stream);

 private:
  bool holds(const Tensor& tensor) const;
  /// "[capture] training, chunk 0, microbatch 1, layer 3: ", and the current op.
  std::string where() const;

  std::string name_;
  std::uint64_t number_;
  std::vector<std::span<const std::byte>> memory_;
  std::shared_ptr<CapturedOps> ops_;
  const CallSite* call_site_ = nullptr;
  const char* op_ = nullptr;
  GraphStats stats_;
  double begun_s_;
};

/// Runs the eager ops of an Exec in its place (Exec::watched): each op once, by ex.execute(op.name, call, op.kind). It
/// may look at the op's tensors before and after. For checks; it costs an allocation per op.
class OpWatcher {
 public:
  virtual ~OpWatcher() = default;
  virtual void run(Exec& ex, const OpInfo& op, const Capture::Call& call) = 0;
};

/// Runs eagerly the code of which a graph was captured, and compares every op with the graph's. So a later run shows
/// what a graph cannot notice at its capture. Throws InternalError that names the op if the host takes another path, or
/// if a tensor has another shape or address. On the CPU, whose graphs hold single ops, each op also runs from the
/// graph, on the same inputs. Different results are refused: the op then took a value by value that changes from step
/// to step, instead of from memory. Takes memory. For debug builds, tests and graphs.check.
class GraphComparison final : public OpWatcher {
 public:
  /// `graph` must outlive this. `name`: what is compared, for messages.
  GraphComparison(const Graph& graph, std::string name);
  /// All ops have run. Throws if the graph has more.
  void end();

  void run(Exec& ex, const OpInfo& op, const Capture::Call& call) override;

 private:
  [[noreturn]] void refuse(const CallSite& place, std::string_view op, std::string_view what) const;
  void compare_results(Exec& ex, std::size_t place, const Capture::Call& call) const;

  const CapturedOps& captured_;
  std::string name_;
  std::size_t next_ = 0;
};

}  // namespace megalith
