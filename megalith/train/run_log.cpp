#include "megalith/train/run_log.h"

#include <cmath>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/comm/positions.h"

namespace megalith::train {

void RunLog::open(io::Fs& fs, const io::Path& out, Index step, const std::string& text) {
  if (!is_written_) return;
  history_.emplace(fs, out / kHistoryName);
  last_step_ = step;
  metrics_.emplace(fs, out / kMetricsName, step);
  event(step == 0 ? "start" : "resume", text);  // after it metrics.jsonl has no later steps (read_attempt())
  if (has_events_) events_.emplace(fs, out / "tensorboard", step);
}

bool RunLog::is_job_over() const { return positions_ != nullptr && positions_->is_failure_reported(); }

void RunLog::note(const std::string& text) {
  if (is_written_ && !is_job_over()) line_.note(text);
}

void RunLog::warn(const std::string& text) {
  if (!is_written_) return;
  log::warning(text);
  event("warning", text);
}

void RunLog::event(const char* name, const std::string& text) {
  if (!is_written_) return;
  const std::string line = history_line(name, last_step_, text);
  if (!history_) {
    early_events_ += line;
    return;
  }
  try {
    history_->write(std::exchange(early_events_, {}) + line);
    history_is_late_ = false;
  } catch (const IoError& error) {  // not by warn(), which writes an event
    if (!history_is_late_) log::warning(str(kHistoryName, " is not complete, and is tried again: ", error.what()));
    history_is_late_ = true;
  }
}

template <class Write>
void RunLog::keep_up(bool& is_late, const char* file, Write&& write) {
  try {
    write();
    if (is_late) note(str(file, " is complete again"));
    is_late = false;
  } catch (const IoError& error) {
    if (!is_late) warn(str(file, " is not complete, and is tried again at every step: ", error.what()));
    is_late = true;
  }
}

void RunLog::add_events(Index step, const std::vector<Scalar>& scalars) {
  if (events_) keep_up(events_are_late_, "the event file", [&] { events_->write(step, scalars); });
}

void RunLog::step(const StepMetrics& metrics) {
  if (!is_written_) return;
  last_step_ = metrics.step;
  keep_up(metrics_are_late_, kMetricsName, [&] { metrics_->write(metrics); });
  add_events(metrics.step, scalars_of(metrics));
  if (!is_job_over()) line_.step(metrics);
}

void RunLog::evaluation(Index step, const HeldOutResult& held_out) {
  if (!is_written_) return;
  keep_up(metrics_are_late_, kMetricsName, [&] { metrics_->write_eval(step, held_out); });
  const Evaluated& result = held_out.result;
  if (!held_out.figures.empty()) return task_evaluation(step, held_out);
  const double perplexity = std::exp(result.losses[0].mean);
  std::vector<Scalar> scalars = {{"valid/loss", result.loss}, {"valid/perplexity", perplexity}};
  std::string parts;
  if (result.losses.are_parts()) {
    for (const LossMean& loss : result.losses) {
      scalars.push_back({str("valid/", loss.name), loss.mean});
      parts += str("  ", loss.name, ' ', loss.mean);
    }
  }
  add_events(step, scalars);
  note(str("step ", step, "  held-out loss ", result.loss, parts, "  perplexity ", perplexity, "  (", held_out.samples,
           " samples)"));
}

void RunLog::task_evaluation(Index step, const HeldOutResult& held_out) {
  std::vector<Scalar> scalars = {{held_out.name + "/loss", held_out.result.loss}};
  std::string scores;
  for (const auto& [name, value] : held_out.figures) {
    const double* const score = std::get_if<double>(&value);
    if (score == nullptr) continue;  // a count
    scalars.push_back({str(held_out.name, '/', name), *score});
    if (!name.starts_with("best_")) scores += str("  ", name, ' ', *score);
  }
  add_events(step, scalars);
  note(str("step ", step, "  ", held_out.name, ": loss ", held_out.result.loss, scores, "  (", held_out.samples,
           " samples)"));
}

void RunLog::choices(Index step, const ChoiceResult& result) {
  if (!is_written_) return;
  keep_up(metrics_are_late_, kMetricsName, [&] { metrics_->write_choices(step, result); });
  std::vector<Scalar> scalars;
  std::string scores;
  for (const auto& [name, value] : result.figures) {
    if (!name.starts_with("acc")) continue;  // a count
    scalars.push_back({str(result.name, '/', name), value});
    if (!name.ends_with("_stderr")) scores += str("  ", name, ' ', value);
  }
  add_events(step, scalars);
  note(str("step ", step, "  ", result.name, scores, "  (", result.questions, " questions)"));
}

void RunLog::graphs(Index step, const std::vector<GraphAccount>& accounts, capture::GraphMode mode) {
  if (!is_written_) return;
  keep_up(metrics_are_late_, kMetricsName, [&] { metrics_->write_graphs(step, accounts.front()); });
  std::string tables = graphs_tables(accounts, mode);
  tables.pop_back();
  note(str("graphs captured by step ", step, ", of those planned\n", tables));
}

void RunLog::sync() {
  if (metrics_) keep_up(metrics_are_late_, kMetricsName, [&] { metrics_->sync(); });
}

}  // namespace megalith::train
