#include "apps/eval/task_scores.h"

#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/tasks/glue.h"
#include "megalith/tasks/predictions.h"
#include "megalith/tasks/race.h"
#include "megalith/tasks/squad_score.h"
#include "megalith/tasks/task_file.h"

#include "apps/program/report_lines.h"

namespace megalith::apps {
namespace {

/// What is printed, by name and in this order.
struct TaskScores {
  nlohmann::ordered_json counts, results;
};

void add_correct(TaskScores& scores, const std::string& prefix, const tasks::Correct& correct) {
  scores.results[prefix + "accuracy"] = correct.fraction();
  scores.results[prefix + "correct"] = correct.correct;
  scores.results[prefix + "total"] = correct.total;
}

void add_part(TaskScores& scores, const std::string& prefix, const tasks::SquadPart& part) {
  scores.results[prefix + "exact"] = part.exact;
  scores.results[prefix + "f1"] = part.f1;
  scores.results[prefix + "total"] = part.total;
}

/// The number of predictions that no example of the data has.
template <class Predictions>
Index other_predictions(const Predictions& predictions, std::size_t examples) {
  return std::ssize(predictions) - static_cast<Index>(examples);
}

TaskScores squad_scores(io::Fs& fs, const ScoreRequest& request) {
  const tasks::SquadSet set = tasks::read_squad(fs, request.data, request.task);
  const tasks::TextPredictions predictions = tasks::read_text_predictions(fs, request.score);
  std::vector<std::string> ids;
  for (const tasks::SquadQuestion& question : set.questions) ids.push_back(question.id);
  tasks::require_predictions(request.score, request.data, ids,
                             [&](const auto& id) { return predictions.contains(id); });
  tasks::NoAnswerScores no_answer;
  if (!request.na_probs.empty()) {
    no_answer = tasks::read_no_answer_scores(fs, request.na_probs);
    std::set<std::string_view> known;
    for (const auto& [id, number] : no_answer) known.insert(id);
    tasks::require_predictions(
        request.na_probs, request.data, ids, [&](const auto& id) { return known.contains(id); }, "no-answer score");
  }
  const tasks::SquadScores found = tasks::score_squad(set, request.task, predictions, no_answer);
  TaskScores scores{.counts = {{"contexts", std::ssize(set.contexts)},
                               {"questions", std::ssize(set.questions)},
                               {"other_predictions", other_predictions(predictions, ids.size())}},
                    .results = {}};
  add_part(scores, "", found.all);
  if (found.has_answer) add_part(scores, "HasAns_", *found.has_answer);
  if (found.no_answer) add_part(scores, "NoAns_", *found.no_answer);
  if (found.best_exact) {
    scores.results["best_exact"] = found.best_exact->score;
    scores.results["best_exact_thresh"] = found.best_exact->threshold;
    scores.results["best_f1"] = found.best_f1->score;
    scores.results["best_f1_thresh"] = found.best_f1->threshold;
  }
  return scores;
}

TaskScores pair_scores(io::Fs& fs, const ScoreRequest& request) {
  const tasks::PairSet set =
      tasks::read_pairs(fs, request.data, request.task, tasks::Labels::required, request.max_line);
  const tasks::ClassPredictions predictions =
      tasks::read_class_predictions(fs, request.score, request.task, request.max_line);
  std::vector<std::string> ids;
  for (const tasks::PairExample& example : set.examples) ids.push_back(example.id);
  tasks::require_predictions(request.score, request.data, ids,
                             [&](const auto& id) { return predictions.contains(id); });
  TaskScores scores{.counts = {{"examples", std::ssize(set.examples)},
                               {"left_out", set.left_out},
                               {"other_predictions", other_predictions(predictions, ids.size())}},
                    .results = {}};
  add_correct(scores, "", tasks::count_correct(set, [&](const auto& example) { return predictions.at(example.id); }));
  return scores;
}

TaskScores race_scores(io::Fs& fs, const ScoreRequest& request) {
  const tasks::RaceSet set = tasks::read_race(fs, request.data, request.max_line);
  const auto predictions = tasks::read_race_predictions(fs, request.score, request.max_line);
  std::vector<std::string> ids;
  for (const tasks::RaceQuestion& question : set.questions) ids.push_back(question.id);
  tasks::require_predictions(request.score, request.data, ids,
                             [&](const auto& id) { return predictions.contains(id); });
  const tasks::RaceScores found =
      tasks::score_race(set, [&](const auto& question) { return predictions.at(question.id); });
  TaskScores scores{.counts = {{"articles", std::ssize(set.articles)},
                               {"questions", std::ssize(set.questions)},
                               {"other_predictions", other_predictions(predictions, ids.size())}},
                    .results = {}};
  add_correct(scores, "", found.all());
  if (found.middle.total > 0) add_correct(scores, "middle_", found.middle);
  if (found.high.total > 0) add_correct(scores, "high_", found.high);
  return scores;
}

TaskScores scores_of(io::Fs& fs, const ScoreRequest& request) {
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

std::string scores_json(const ScoreRequest& request, const TaskScores& scores,
                        const std::vector<std::pair<std::string, std::string>>& checksums) {
  nlohmann::ordered_json json = {{"task", tasks::name_of(request.task)}};
  const std::string files[] = {request.data, request.score, request.na_probs};
  for (std::size_t i = 0; i < checksums.size(); ++i) {
    nlohmann::ordered_json& file = json[checksums[i].first];
    file["file"] = files[i];
    if (!checksums[i].second.empty()) file["xxh3_128"] = checksums[i].second;
  }
  json["counts"] = scores.counts;
  json["results"] = scores.results;
  return json.dump(2) + '\n';
}

std::string scores_text(const ScoreRequest& request, const TaskScores& scores,
                        const std::vector<std::pair<std::string, std::string>>& checksums) {
  std::string text;
  add_line(text, "task", std::string(tasks::title_of(request.task)));
  const std::string files[] = {request.data, request.score, request.na_probs};
  for (std::size_t i = 0; i < checksums.size(); ++i)
    add_line(text, checksums[i].first,
             checksums[i].second.empty() ? files[i] : str(files[i], " (", checksums[i].second, ")"));
  for (const nlohmann::ordered_json& part : {scores.counts, scores.results}) {
    for (const auto& [name, value] : part.items())
      add_line(text, name,
               value.is_number_float() ? printed("%.6f", value.get<double>()) : grouped(value.get<Index>()));
  }
  return text;
}

}  // namespace

std::string score_predictions(io::Fs& fs, const ScoreRequest& request) {
  const TaskScores scores = scores_of(fs, request);
  std::vector<std::pair<std::string, std::string>> checksums;
  const auto add = [&](const char* name, const std::string& file) {
    if (!file.empty()) checksums.emplace_back(name, fs.is_dir(file) ? "" : tasks::file_checksum(fs, file));
  };
  add("data", request.data);
  add("predictions", request.score);
  add("no_answer_scores", request.na_probs);
  return request.is_json ? scores_json(request, scores, checksums) : scores_text(request, scores, checksums);
}

}  // namespace megalith::apps
