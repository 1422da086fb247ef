#pragma once
#include <optional>

#include "megalith/runtime/tracer.h"
#include "megalith/train/engine.h"
#include "megalith/train/run_log.h"

namespace megalith::train {

/// Which steps of a run are traced: kTraced steps after the first kUntraced, or the last ones of a shorter run. They
/// are written to one file (trace_file.h).
class StepTrace {
 public:
  static constexpr Index kUntraced = 2, kTraced = 3;
  /// For a run that trains steps [first_step, last_step). Without `file` no step is traced.
  StepTrace(Engine& engine, io::Fs& fs, RunLog& log, io::Path file, Index first_step, Index last_step);

  /// With `step` steps completed, before the next one. Collective.
  void before_step(Index step);
  /// With `step` steps completed. Collective.
  void after_step(Index step);
  /// Writes the steps traced so far, if any: no more come. A file that cannot be written is a warning. Collective.
  void close(Index step);

 private:
  Engine& engine_;
  io::Fs& fs_;
  RunLog& log_;
  io::Path file_;
  Index begin_, end_;  ///< the traced steps
  std::optional<Tracer> tracer_;
};

}  // namespace megalith::train
