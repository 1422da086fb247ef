#include "megalith/train/graph_reports.h"

#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith::train {

void GraphReports::start(Index step) {
  const capture::GraphsConfig& graphs = plan_.graphs;
  const Index steps = plan_.train.steps - step;
  if (steps <= 0 || !has_graphs()) return;
  if (graphs.mode == capture::GraphMode::layers && steps == graphs.warmup_steps + 1) {
    log_.warn(str("graphs.mode = layers: no graph is launched, as there are ", steps,
                  " steps to train, graphs.warmup_steps = ", graphs.warmup_steps,
                  " and the step of the capture runs eagerly"));
  } else if (steps <= graphs.warmup_steps) {
    log_.warn(str("graphs.mode = ", name(graphs.mode), ": no graph is captured, as there are ", steps,
                  " steps to train and graphs.warmup_steps = ", graphs.warmup_steps));
  }
}

void GraphReports::after_step(Index step) {
  note_capture(step);
  if (are_new(step)) report(step);
  report_check(step == plan_.train.steps ? MoreSteps::end : MoreSteps::come);
}

void GraphReports::after_evaluation(Index step) {
  const bool had_graph = has_eval_graph_;
  has_eval_graph_ = engine_.eval_graph().captured();
  if (has_eval_graph_ != had_graph && engine_.train_graph().captured()) report(step);
}

bool GraphReports::are_new(Index step) const {
  const Index steps = engine_.steps_with_graphs();
  if (!has_graphs() || !(steps == 2 || (steps == 1 && step == plan_.train.steps))) return false;
  return !is_reported_ || engine_.stage().step_batch() == plan_.train.global_batch;
}

void GraphReports::note_capture(Index step) {
  if (engine_.captures() == captures_) return;
  captures_ = engine_.captures();
  if (captures_ > 1)
    log_.note(
        str("graphs are captured again in step ", step, ", the first of ", engine_.stage().step_batch(), " samples"));
}

void GraphReports::report(Index step) {
  is_reported_ = true;
  log_.graphs(step, account_for_graphs(engine_, plan_), plan_.graphs.mode);
}

void GraphReports::report_check(MoreSteps more) {
  const Index asked = plan_.graphs.check_steps, checked = engine_.steps_checked();
  if (asked == 0 || !has_graphs() || check_is_reported_) return;
  if (checked < asked && more == MoreSteps::come) return;
  check_is_reported_ = true;
  if (checked > 0) log_.note(str("graphs.check: ", checked, " steps from graphs had the bits of eager ones"));
  if (checked < asked)
    log_.warn(str("graphs.check = ", asked, ": ", checked, " steps were compared before the run ended"));
}

void GraphReports::report_submit_times() {
  const CapturedGraphs graphs = engine_.captured_graphs();
  if (graphs.timed_steps == 0) return;
  log_.note(str("graphs: the host submitted a step in ", microseconds(graphs.submit_s), ", of which launches took ",
                microseconds(graphs.launch_s), " (mean of ", graphs.timed_steps, " steps)"));
}

}  // namespace megalith::train
