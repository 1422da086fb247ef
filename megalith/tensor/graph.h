#pragma once
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megalith/tensor/tensor.h"

namespace megalith {

class Exec;
struct OpInfo;

/// Ops captured once, with the addresses that they touch, and launched as often as wanted: a CUDA graph on a GPU; on
/// the CPU a list of the calls, so that what holds for graphs is tested on any machine. A launch repeats device work
/// and nothing of the host's. A cheap handle.
class Graph {
 public:
  Graph() = default;
  explicit operator bool() const { return body_ != nullptr; }
  /// Runs in the order of `ex`. On a GPU the host only submits.
  void launch(Exec& ex) const;
  /// Ops of the Exec that were captured: on a GPU the graph has a node or more for each.
  Index num_ops() const;

  /// What a device makes of the captured ops.
  class Body {
   public:
    virtual ~Body() = default;
    virtual void launch(Exec& ex) const = 0;
    virtual Index num_ops() const = 0;
  };
  explicit Graph(std::shared_ptr<const Body> body) : body_(std::move(body)) {}

 private:
  std::shared_ptr<const Body> body_;
};

/// What an Exec captures into, from Exec::begin_capture() to end_capture(). Everything that a graph cannot repeat is
/// refused there with an InternalError that names the op and `place`: a tensor outside the plan (its address is gone at
/// the launch), waiting for the device, and an op on memory that is not in `memory`.
class Capture {
 public:
  using Call = std::function<void(Exec&, Stream)>;

  /// `memory`: all that graphs may touch, as it stays where it is until they are gone.
  explicit Capture(std::vector<std::span<const std::byte>> memory) : memory_(std::move(memory)) {}

  /// Where the run is ("layer 3, microbatch 1"), for messages.
  void set_place(std::string place) { place_ = std::move(place); }
  [[noreturn]] void refuse(std::string_view what, std::string_view why) const;

  // For Exec.
  void check(const OpInfo& op) const;
  void add(const char* name, Call call);
  void count() { ++num_ops_; }
  Graph end(Device device, Stream stream);

 private:
  class CallList;
  bool holds(const Tensor& tensor) const;

  std::vector<std::span<const std::byte>> memory_;
  std::string place_ = "a capture";
  std::shared_ptr<CallList> calls_;  // on the CPU
  Index num_ops_ = 0;                // on a GPU
};

}  // namespace megalith
