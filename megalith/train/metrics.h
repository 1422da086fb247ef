#pragma once
#include <set>
#include <string>
#include <vector>

#include "megalith/io/log_file.h"
#include "megalith/train/event_file.h"
#include "megalith/train/graph_accounting.h"

namespace megalith::train {

inline constexpr const char* kMetricsName = "metrics.jsonl";

/// One line of metrics.jsonl for a step.
struct StepMetrics {
  Index step = 0;
  StepReport result;
  Index tokens = 0;  ///< trained on since the start of the run
  Index batch = 0;   ///< samples of the step in a run whose batches grow; 0: all steps have as many
  double step_time_s = 0, tokens_per_second = 0, model_tflops_per_s = 0;
  Index missed_saves = 0;  ///< that could not be written since this start of the run
  Index memory_bytes = 0;  ///< of the rank with the most: planned, and measured on GPUs
};

/// A loss or gradient norm above the limit of train.spike_loss or train.spike_norm.
struct Spike {
  const char* key;   ///< in metrics.jsonl: "loss", "grad_norm"
  const char* name;  ///< in messages
  double value = 0, mean = 0;

  double times() const { return value / mean; }
  /// "the loss 5.3 is 2.1 times its mean"
  std::string text() const;
};
std::vector<Spike> spikes_of(const StepReport& report);

/// The same numbers for TensorBoard.
std::vector<Scalar> scalars_of(const StepMetrics& metrics);

/// DIR/metrics.jsonl: one JSON object per line, with enough digits to read back the same double. A log, not state:
/// appended without sync. Lines that a full disk refuses are written with the next line. Only rank 0 uses it.
class MetricsLog {
 public:
  /// A resumed run drops the lines after `resumed_step`, because it writes them again.
  MetricsLog(io::Fs& fs, const io::Path& file, Index resumed_step);
  void write(const StepMetrics& metrics);
  void write_eval(Index step, const HeldOutResult& held_out);
  /// The scores of a task of eval.tasks.
  void write_choices(Index step, const ChoiceResult& result);
  /// Rank 0's graphs, as captured at the end of a step.
  void write_graphs(Index step, const GraphAccount& account);
  /// Returns when all written lines are durable. Called before a checkpoint acknowledges their steps.
  void sync() { file_.sync(); }
  /// Whether the log has an evaluation of a step.
  bool has_eval(Index step) const { return evaluated_.contains(step); }

 private:
  void line(const std::string& text) { file_.write(text + "\n"); }
  std::set<Index> evaluated_;  ///< steps
  io::LogFile file_;
};

/// The step of the last complete line of a step in a metrics.jsonl; 0 if there is none. Throws IoError.
Index last_step_of_metrics(io::Fs& fs, const io::Path& file);

}  // namespace megalith::train
