#include "apps/eval/task_scores.h"

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/file_problems.h"
#include "megalith/report/finetune_report.h"
#include "megalith/tasks/glue.h"
#include "megalith/tasks/predictions.h"
#include "megalith/tasks/race.h"
#include "megalith/tasks/task_figures.h"
#include "megalith/tasks/task_file.h"

#include "apps/program/report_lines.h"

namespace megalith::apps {
namespace {

/// The number of predictions that no example of the data has.
template <class Predictions>
Index other_predictions(const Predictions& predictions, std::size_t examples) {
  return std::ssize(predictions) - static_cast<Index>(examples);
}

/// Keeps an error if an example of the set has nothing in `found`, by id. Does nothing without both.
template <class Set, class Examples, class Found>
void require_ids(io::SeveralFiles& files, const std::string& file, const std::string& data,
                 const std::optional<Set>& set, Examples Set::*examples, const std::optional<Found>& found,
                 std::string_view what = "prediction") {
  if (!set || !found) return;
  std::vector<std::string> ids;
  for (const auto& example : (*set).*examples) ids.push_back(example.id);
  std::set<std::string_view> known;
  for (const auto& [id, value] : *found) known.insert(id);
  files.check([&] {
    tasks::require_predictions(
        file, data, ids, [&](const auto& id) { return known.contains(id); }, what);
  });
}

TaskReport squad_scores(io::Fs& fs, const ScoreRequest& request) {
  io::SeveralFiles files;
  const auto set = files.read([&] { return tasks::read_squad(fs, request.data, request.task); });
  const auto predictions = files.read([&] { return tasks::read_text_predictions(fs, request.score); });
  require_ids(files, request.score, request.data, set, &tasks::SquadSet::questions, predictions);
  std::optional<tasks::NoAnswerScores> no_answer = tasks::NoAnswerScores();
  if (!request.na_probs.empty()) {
    no_answer = files.read([&] { return tasks::read_no_answer_scores(fs, request.na_probs); });
    require_ids(files, request.na_probs, request.data, set, &tasks::SquadSet::questions, no_answer, "no-answer score");
  }
  files.throw_if_any();
  return {.counts = {{"contexts", std::ssize(set->contexts)},
                     {"questions", std::ssize(set->questions)},
                     {"other_predictions", other_predictions(*predictions, set->questions.size())}},
          .results = tasks::squad_figures(*set, request.task, *predictions, *no_answer)};
}

TaskReport pair_scores(io::Fs& fs, const ScoreRequest& request) {
  io::SeveralFiles files;
  const auto set = files.read(
      [&] { return tasks::read_pairs(fs, request.data, request.task, tasks::Labels::required, request.max_line); });
  const auto predictions =
      files.read([&] { return tasks::read_class_predictions(fs, request.score, request.task, request.max_line); });
  require_ids(files, request.score, request.data, set, &tasks::PairSet::examples, predictions);
  files.throw_if_any();
  return {.counts = {{"examples", std::ssize(set->examples)},
                     {"left_out", set->left_out},
                     {"other_predictions", other_predictions(*predictions, set->examples.size())}},
          .results = tasks::pair_figures(*set, *predictions)};
}

TaskReport race_scores(io::Fs& fs, const ScoreRequest& request) {
  io::SeveralFiles files;
  const auto set = files.read([&] { return tasks::read_race(fs, request.data, request.max_line); });
  const auto predictions =
      files.read([&] { return tasks::read_race_predictions(fs, request.score, request.max_line); });
  require_ids(files, request.score, request.data, set, &tasks::RaceSet::questions, predictions);
  files.throw_if_any();
  return {.counts = {{"articles", std::ssize(set->articles)},
                     {"questions", std::ssize(set->questions)},
                     {"other_predictions", other_predictions(*predictions, set->questions.size())}},
          .results = tasks::race_figures(*set, *predictions)};
}

TaskReport scores_of(io::Fs& fs, const ScoreRequest& request) {
  switch (request.task) {
    case tasks::Task::mnli:
    case tasks::Task::qqp:
      return pair_scores(fs, request);
    case tasks::Task::squad1:
    case tasks::Task::squad2:
      return squad_scores(fs, request);
    case tasks::Task::race:
      return race_scores(fs, request);
  }
  throw InternalError("[score_predictions] task: is none of those that there are");
}

std::string task_report_json(const TaskReport& report) {
  nlohmann::ordered_json json = {{"task", tasks::name_of(report.task)}};
  for (const TaskReport::File& file : report.files) {
    json[file.use]["file"] = file.path;
    if (!file.checksum.empty()) json[file.use]["xxh3_128"] = file.checksum;
  }
  if (report.model) {
    const TaskReport::Model& model = *report.model;
    json["checkpoint"] = {{"folder", model.checkpoint}, {"digest", model.digest}};
    json["precision"] = model.precision;
    json["device"] = model.device;
    json["grid"] = model.grid;
    json["batch"] = model.batch;
    json["seconds"] = model.seconds;
    json["tokens_per_second"] = model.tokens_per_second();
  }
  json["counts"] = json_of(report.counts);
  json["results"] = json_of(report.results);
  return json.dump(2) + '\n';
}

std::string task_report_text(const TaskReport& report) {
  std::string text;
  add_line(text, "task", std::string(tasks::title_of(report.task)));
  for (const TaskReport::File& file : report.files)
    add_line(text, file.use, file.checksum.empty() ? file.path : str(file.path, " (", file.checksum, ")"));
  if (report.model) {
    const TaskReport::Model& model = *report.model;
    add_line(text, "checkpoint", str(model.checkpoint, " (", model.digest, ")"));
    add_line(text, "run", str(model.precision, " on ", model.device, ", ", model.grid, ", batch ", model.batch));
    add_line(text, "speed",
             str(printed("%.1f s, ", model.seconds), printed("%.0f tokens/s", model.tokens_per_second())));
  }
  for (const tasks::Figures* figures : {&report.counts, &report.results}) {
    for (const auto& [name, value] : *figures) {
      const double* const real = std::get_if<double>(&value);
      add_line(text, name, real != nullptr ? printed("%.6f", *real) : grouped(std::get<Index>(value)));
    }
  }
  return text;
}

}  // namespace

std::string task_report(const TaskReport& report, bool is_json) {
  return is_json ? task_report_json(report) : task_report_text(report);
}

std::string score_predictions(io::Fs& fs, const ScoreRequest& request) {
  TaskReport report = scores_of(fs, request);
  report.task = request.task;
  const auto add = [&](const char* use, const std::string& file) {
    if (!file.empty()) report.files.push_back({use, file, fs.is_dir(file) ? "" : tasks::file_checksum(fs, file)});
  };
  add("data", request.data);
  add("predictions", request.score);
  add("no_answer_scores", request.na_probs);
  return task_report(report, request.is_json);
}

}  // namespace megalith::apps
