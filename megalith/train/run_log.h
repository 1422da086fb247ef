#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/world.h"
#include "megalith/config/run_plan.h"
#include "megalith/train/event_file.h"
#include "megalith/train/metrics.h"
#include "megalith/train/progress_line.h"
#include "megalith/train/run_history.h"

namespace megalith::train {

/// What a run shows and records: lines for a person who watches, metrics.jsonl, history.jsonl, the event file of
/// TensorBoard. All of it comes from rank 0; on other ranks every member does nothing. Metrics are no state: a full
/// disk delays lines of the files, with a warning, and does not end the run.
class RunLog {
 public:
  RunLog(const comm::World& world, const config::RunPlan& plan, ProgressLine::Screen screen)
      : is_written_(world.rank() == 0),
        has_events_(plan.tensorboard),
        positions_(world.positions()),
        line_(plan.train.steps, plan.log_interval, std::move(screen)) {}

  /// Begins the files in `out`, or continues those of a run that resumes at `step`. `text` describes the start or the
  /// resume in history.jsonl. Throws IoError.
  void open(io::Fs& fs, const io::Path& out, Index step, const std::string& text);
  void note(const std::string& text);
  void warn(const std::string& text);
  /// A line of history.jsonl. Before open() it is kept.
  void event(const char* name, const std::string& text);
  void step(const StepMetrics& metrics);
  void evaluation(Index step, const HeldOutResult& held_out);
  /// The scores of a task of eval.tasks at an evaluation.
  void choices(Index step, const ChoiceResult& result);
  /// Those of all ranks, as captured at the end of a step.
  void graphs(Index step, const std::vector<GraphAccount>& accounts, capture::GraphMode mode);
  /// Whether metrics.jsonl has an evaluation of the step. False on other ranks.
  bool has_evaluation(Index step) const { return metrics_ && metrics_->has_eval(step); }
  /// Returns when the lines of metrics.jsonl are durable.
  void sync();

 private:
  /// Writes to a file and warns when it begins to fail.
  template <class Write>
  void keep_up(bool& is_late, const char* file, Write&& write);
  void task_evaluation(Index step, const HeldOutResult& held_out);
  void add_events(Index step, const std::vector<Scalar>& scalars);
  /// Another process reports the failure of the job: this one was stopped and is woken to be ended. Prints nothing
  /// more.
  bool is_job_over() const;

  bool is_written_, has_events_;
  std::shared_ptr<comm::Positions> positions_;
  ProgressLine line_;
  std::optional<MetricsLog> metrics_;
  std::optional<EventFile> events_;
  std::optional<io::LogFile> history_;
  std::string early_events_;  ///< lines from before open()
  Index last_step_ = 0;
  bool metrics_are_late_ = false, events_are_late_ = false, history_is_late_ = false;
};

}  // namespace megalith::train
