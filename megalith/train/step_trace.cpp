#include "megalith/train/step_trace.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/train/trace_file.h"

namespace megalith::train {

StepTrace::StepTrace(Engine& engine, io::Fs& fs, RunLog& log, io::Path file, Index first_step, Index last_step)
    : engine_(engine),
      fs_(fs),
      log_(log),
      file_(std::move(file)),
      begin_(first_step + std::min(kUntraced, last_step - first_step - 1)),
      end_(std::min(begin_ + kTraced, last_step)) {
  if (!file_.empty() && first_step >= last_step)
    log_.warn(str("--trace = ", file_.string(), ": not written, as no step is left to train"));
}

void StepTrace::before_step(Index step) {
  if (file_.empty() || step != begin_) return;
  begin_trace(engine_.world(), engine_.exec(), tracer_.emplace(engine_.stage().config().device));
}

void StepTrace::after_step(Index step) {
  if (step == end_) close(step);
}

void StepTrace::close(Index step) {
  if (!tracer_) return;
  engine_.exec().set_tracer(nullptr);
  try {
    write_trace(engine_.world(), fs_, file_, *tracer_, traced_groups(engine_.mesh()));
    log_.note(str("wrote steps ", begin_ + 1, " to ", step, " of all ranks to ", file_.string()));
  } catch (const IoError& error) {
    log_.warn(str("--trace = ", file_.string(), ": not written, training goes on: ", error.what()));
  }
  tracer_.reset();
}

}  // namespace megalith::train
