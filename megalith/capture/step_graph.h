#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/tensor/exec.h"

namespace megalith::capture {

/// A step's ops as one graph: run eagerly while everything lazy settles (libraries choose and load, NCCL connects),
/// then captured, then launched. One for training, one for evaluation. What the host does within the ops happens in the
/// eager runs and at the capture only.
class StepGraph {
 public:
  /// `name` ("training") is for messages. `checked_runs`, on the CPU: so many runs after the capture are eager ones
  /// that are compared with the graph, op by op (GraphComparison); at least one in debug builds.
  StepGraph(std::string name, Index warmup_runs, Index checked_runs)
      : name_(std::move(name)), warmup_runs_(warmup_runs), checked_runs_(std::max(checked_runs, kLeastChecked)) {}

  /// ops() runs, is captured into memory `planned` and launched, or is launched. Every rank captures in the same run.
  template <class Ops>
  void run(Exec& ex, const std::vector<std::span<const std::byte>>& planned, Ops&& ops) {
    if (!graph_ && eager_runs_ < warmup_runs_) {
      ++eager_runs_;
      return ops();
    }
    if (!graph_) {
      graph_ = record(ex, planned, ops);
    } else if (ex.device() == Device::cpu && checks_done_ < checked_runs_) {
      ++checks_done_;
      return compare(ex, ops);
    }
    graph_.launch(ex);
  }
  /// Forgets the graph: the next runs are eager again, then it is captured anew.
  void reset() {
    graph_ = {};
    eager_runs_ = checks_done_ = 0;
  }

  /// Whether the next run is the one that captures.
  bool captures_next() const { return !graph_ && eager_runs_ == warmup_runs_; }
  bool captured() const { return static_cast<bool>(graph_); }
  const Graph& graph() const { return graph_; }

 private:
#ifdef NDEBUG
  static constexpr Index kLeastChecked = 0;
#else
  static constexpr Index kLeastChecked = 1;
#endif

  template <class Ops>
  Graph record(Exec& ex, const std::vector<std::span<const std::byte>>& planned, Ops& ops) {
    Capture capture(name_, planned);
    ex.begin_capture(capture);
    try {
      ops();
    } catch (...) {
      ex.abandon_capture();
      throw;
    }
    return ex.end_capture();
  }

  template <class Ops>
  void compare(Exec& ex, Ops& ops) {
    GraphComparison comparison(graph_, name_);
    ex.set_comparison(&comparison);
    try {
      ops();
      comparison.end();
    } catch (...) {
      ex.set_comparison(nullptr);
      throw;
    }
    ex.set_comparison(nullptr);
  }

  std::string name_;
  Index warmup_runs_;
  Index checked_runs_;
  Index eager_runs_ = 0, checks_done_ = 0;
  Graph graph_;
};

}  // namespace megalith::capture
