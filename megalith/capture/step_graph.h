#pragma once
#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/types.h"
#include "megalith/runtime/exec.h"
#include "megalith/runtime/timed_launches.h"

namespace megalith::capture {

/// The ops of a step as one graph. They first run eagerly while libraries choose and load and NCCL connects, then they
/// are captured, then launched. There is one graph for training and one for evaluation. Host code within the ops runs
/// only in the eager runs and at the capture.
class StepGraph {
 public:
  /// `name` ("training") is for messages.
  StepGraph(std::string name, Index warmup_runs) : name_(std::move(name)), warmup_runs_(warmup_runs) {}

  /// Runs ops(), or captures it in memory `planned` and launches it, or launches the graph. Every rank captures in the
  /// same run.
  template <class Ops>
  void run(Exec& ex, const std::vector<std::span<const std::byte>>& planned, Ops&& ops) {
    if (!graph_ && eager_runs_ < warmup_runs_) {
      ++eager_runs_;
      return ops();
    }
    if (!graph_) capture(ex, planned, ops);
    launches_.launch(ex, graph_);
  }
  /// Captures ops() without running it. The next run launches it. Throws InternalError if there is a graph already.
  template <class Ops>
  void capture(Exec& ex, const std::vector<std::span<const std::byte>>& planned, Ops&& ops) {
    if (graph_) throw InternalError(str("[graph] ", name_, ": is captured already: reset() it first"));
    Capture capture(name_, planned);
    Graph graph = ex.captured(capture, ops);
    graph.prepare(ex);
    graph_ = std::move(graph);
  }
  /// After the capture: runs ops() eagerly and compares it with the graph (Exec::run_beside).
  template <class Ops>
  void run_beside(Exec& ex, Ops&& ops) {
    ex.run_beside(graph_, name_, ops);
  }
  /// Drops the graph. The next runs are eager again; then it is captured again.
  void reset() {
    drop();
    eager_runs_ = 0;
  }
  /// Drops the graph. The next run captures it again.
  void drop() {
    graph_ = {};
    launches_ = {};
  }

  /// Whether the next run captures.
  bool captures_next() const { return !graph_ && eager_runs_ == warmup_runs_; }
  bool captured() const { return static_cast<bool>(graph_); }
  const Graph& graph() const { return graph_; }
  const TimedLaunches& launches() const { return launches_; }

 private:
  std::string name_;
  Index warmup_runs_;
  Index eager_runs_ = 0;
  Graph graph_;
  TimedLaunches launches_;
};

}  // namespace megalith::capture
