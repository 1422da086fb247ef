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

/// What graphs hold, and what making them took.
struct GraphStats {
  Index graphs = 0;
  Index ops = 0;             ///< of the Exec that were captured
  Index comm_calls = 0;      ///< of these, collectives and messages between ranks
  Index nodes = 0;           ///< what a launch hands to the device: on a GPU one or more for most ops
  double capture_s = 0;      ///< of the host, from the first op to a graph that can be launched
  double instantiate_s = 0;  ///< of it: making that graph from the captured nodes and uploading it; 0 on the CPU

  GraphStats& operator+=(const GraphStats& other);
};

/// Ops captured once, with the addresses that they touch, and launched as often as wanted: a CUDA graph on a GPU; on
/// the CPU a list of the calls, so that what holds for graphs is tested on any machine. A launch repeats device work
/// and nothing of the host's. A cheap handle.
class Graph {
 public:
  Graph() = default;
  explicit operator bool() const { return body_ != nullptr; }
  /// Makes of what was captured something that can be launched. On a GPU this takes memory and may wait for all that
  /// the GPU does: not while that waits for other ranks. Errors name what was captured and where; IoError where there
  /// is no memory.
  void prepare(Exec& ex);
  /// Runs in the order of `ex`. On a GPU the host only submits.
  void launch(Exec& ex) const;
  const GraphStats& stats() const { return stats_; }
  /// What was captured and where, for messages.
  const std::string& what() const { return what_; }
  /// What the ops of a graph touch, in their order, at the addresses of the capture. Throws InternalError for no graph.
  struct Touched {
    std::string_view op;
    std::span<const Tensor> reads, writes;
    Tensor scratch;      ///< of the op alone
    bool waits = false;  ///< for a call between ranks: it holds its tensors, and makes nothing of them
    Index layer = -1;    ///< of the model, in which it was captured; -1: in none
  };
  std::vector<Touched> touched() const;

  /// What a device makes of the captured ops.
  class Body {
   public:
    virtual ~Body() = default;
    virtual void prepare(Exec& ex) = 0;
    virtual void launch(Exec& ex) const = 0;
  };
  /// `what` ("training, chunk 0, microbatch 1, layer 3"), for messages.
  Graph(std::shared_ptr<Body> body, std::shared_ptr<const CapturedOps> ops, const GraphStats& stats, std::string what)
      : body_(std::move(body)), ops_(std::move(ops)), stats_(stats), what_(std::move(what)) {}

 private:
  friend class GraphComparison;
  std::shared_ptr<Body> body_;
  std::shared_ptr<const CapturedOps> ops_;
  GraphStats stats_;
  std::string what_;
};

/// Loads what captures put into graphs of their own, on the GPU that the calling thread uses: before other ranks are
/// waited for, as loading may wait for the GPU.
void prepare_captures(Device device);

/// What an Exec captures into, from Exec::begin_capture() to end_capture(). Everything that a graph cannot repeat is
/// refused there with an InternalError that names the place in the step and the op: a tensor outside the plan (its
/// address is gone at the launch), an op on memory that is not in `memory`, and whatever else the thread does meanwhile
/// that no graph can hold (tensor/device.h): waiting for the device, taking memory, copies that are no ops; also
/// waiting for a call between ranks that was started outside (comm::Pending::wait).
class Capture final : public CaptureGuard {
 public:
  using Call = std::function<void(Exec&, Stream)>;

  /// `name` ("training") is for messages. `memory`: all that graphs may touch, as it stays where it is until they are
  /// gone.
  Capture(std::string name, std::vector<std::span<const std::byte>> memory);

  [[noreturn]] void refuse(std::string_view what, std::string_view why) const override;
  /// Another for each capture of the process, from 1: what was begun within one can tell it from later ones.
  std::uint64_t number() const { return number_; }
  /// Puts the place in front of an error of captured code that does not say it, unless it is another rank's.
  void put_call_site(Error& error) const;
  bool in_op() const override { return op_ != nullptr; }

  // For Exec.
  /// Of that device's work; from here on messages name where `place` then is.
  void follow(const CallSite& place, Device device) {
    call_site_ = &place;
    device_ = device;
  }
  void check(const OpInfo& op) const;
  /// Without a call on a GPU, whose graph has it.
  void add(const OpInfo& op, Call call);
  void add_poison(Call call);
  /// What submit() asks of the device belongs to an op. After an error the capture is over.
  template <class Submit>
  void within(const char* op, Submit&& submit) {
    const char* outer = std::exchange(op_, op);
    submit();
    op_ = outer;
  }
  Graph end(Device device, Stream stream);

 private:
  bool holds(const Tensor& tensor) const;
  /// "[capture] training, chunk 0, microbatch 1, layer 3: ", and the op within which it is.
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

/// Runs eagerly what a graph was captured of and holds every op against the graph's: what a graph cannot see at its
/// capture shows itself in a later run. Throws InternalError that names the op when the host has taken another path and
/// when a tensor has another shape or address. On the CPU, whose graphs hold ops one by one, each also runs from the
/// graph, on the same inputs, and results that differ are refused: then the op took a value that changes from step to
/// step by value, not from memory. Takes memory; for debug builds, tests and graphs.check.
class GraphComparison {
 public:
  /// `graph` must live as long. `name`: of what is compared, for messages.
  GraphComparison(const Graph& graph, std::string name);
  /// All ops were run. Throws when the graph has more.
  void end();

  // For Exec.
  void run(Exec& ex, const OpInfo& op, const Capture::Call& call);

 private:
  [[noreturn]] void refuse(const CallSite& place, std::string_view op, std::string_view what) const;
  void compare_results(Exec& ex, std::size_t place, const Capture::Call& call) const;

  const CapturedOps& captured_;
  std::string name_;
  std::size_t next_ = 0;
};

}  // namespace megalith
