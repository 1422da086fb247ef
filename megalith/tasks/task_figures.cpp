#include "megalith/tasks/task_figures.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::tasks {
namespace {

void add_correct(Figures& figures, const std::string& prefix, const Correct& correct) {
  figures.emplace_back(prefix + "accuracy", correct.fraction());
  figures.emplace_back(prefix + "correct", correct.correct);
  figures.emplace_back(prefix + "total", correct.total);
}

void add_part(Figures& figures, const std::string& prefix, const SquadPart& part) {
  figures.emplace_back(prefix + "exact", part.exact);
  figures.emplace_back(prefix + "f1", part.f1);
  figures.emplace_back(prefix + "total", part.total);
}

}  // namespace

std::string_view deciding_figure(Task task) { return classes_of(task).empty() ? "f1" : "accuracy"; }

double deciding_score(Task task, const Figures& figures) {
  const std::string_view name = deciding_figure(task);
  const auto found =
      std::ranges::find(figures, name, [](const auto& figure) { return std::string_view(figure.first); });
  if (found == figures.end()) throw InternalError(str("[deciding_score] ", name, " = none: must be among the figures"));
  return std::visit([](auto value) { return static_cast<double>(value); }, found->second);
}

Figures pair_figures(const PairSet& set, const ClassPredictions& predictions) {
  Figures figures;
  add_correct(figures, "", count_correct(set, [&](const auto& example) { return predictions.at(example.id); }));
  return figures;
}

Figures race_figures(const RaceSet& set, const ClassPredictions& predictions) {
  const RaceScores found = score_race(set, [&](const auto& question) { return predictions.at(question.id); });
  Figures figures;
  add_correct(figures, "", found.all());
  if (found.middle.total > 0) add_correct(figures, "middle_", found.middle);
  if (found.high.total > 0) add_correct(figures, "high_", found.high);
  return figures;
}

Figures squad_figures(const SquadSet& set, Task task, const TextPredictions& predictions,
                      const NoAnswerScores& no_answer) {
  const SquadScores found = score_squad(set, task, predictions, no_answer);
  Figures figures;
  add_part(figures, "", found.all);
  if (found.has_answer) add_part(figures, "HasAns_", *found.has_answer);
  if (found.no_answer) add_part(figures, "NoAns_", *found.no_answer);
  if (!found.best_exact) return figures;
  figures.emplace_back("best_exact", found.best_exact->score);
  figures.emplace_back("best_exact_thresh", found.best_exact->threshold);
  figures.emplace_back("best_f1", found.best_f1->score);
  figures.emplace_back("best_f1_thresh", found.best_f1->threshold);
  return figures;
}

}  // namespace megalith::tasks
