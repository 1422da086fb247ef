#pragma once
#include "megalith/train/engine.h"
#include "megalith/train/run_log.h"

namespace megalith::train {

/// What a run reports about its graphs: which were captured, what graphs.check found, what submitting steps costs.
class GraphReports {
 public:
  GraphReports(Engine& engine, const config::RunPlan& plan, RunLog& log) : engine_(engine), plan_(plan), log_(log) {}

  /// With `step` steps completed, before the first one of this start. Warns if graphs will not be captured or launched.
  void start(Index step);
  /// With `step` steps completed. Collective.
  void after_step(Index step);
  /// The same after an evaluation, which may have captured a graph.
  void after_evaluation(Index step);
  /// The result of graphs.check: once, when its steps have been compared, or when no more come.
  enum class MoreSteps : std::uint8_t { come, end };
  void report_check(MoreSteps more);
  /// The host's time to submit a step from graphs.
  void report_submit_times();

 private:
  /// Whether graphs have been launched once since the capture, so that launches have been timed, or where the run ends
  /// before. Of a batch that grows only the first graphs and those of the largest steps. The same on all ranks.
  bool are_new(Index step) const;
  /// Notes graphs that replace those of smaller steps.
  void note_capture(Index step);
  /// Collective.
  void report(Index step);
  bool has_graphs() const { return plan_.graphs.mode != capture::GraphMode::none; }

  Engine& engine_;
  const config::RunPlan& plan_;
  RunLog& log_;
  Index captures_ = 0;
  bool is_reported_ = false, has_eval_graph_ = false, check_is_reported_ = false;
};

}  // namespace megalith::train
