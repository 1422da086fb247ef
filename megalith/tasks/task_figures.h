#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "megalith/tasks/glue.h"
#include "megalith/tasks/predictions.h"
#include "megalith/tasks/race.h"
#include "megalith/tasks/squad_score.h"

namespace megalith::tasks {

/// Numbers with the names under which reports have them. Accuracies are fractions, EM and F1 in percent.
using Figures = std::vector<std::pair<std::string, std::variant<Index, double>>>;

/// The figure by which models of a task are compared: `accuracy`; of SQuAD `f1`.
std::string_view deciding_figure(Task task);
/// Its value. Throws InternalError if there is none.
double deciding_score(Task task, const Figures& figures);

/// Of predictions for all examples of a file: `accuracy`, `correct`, `total`.
Figures pair_figures(const PairSet& set, const ClassPredictions& predictions);
/// The same, then of the levels that the file has, with `middle_` and `high_` before the names.
Figures race_figures(const RaceSet& set, const ClassPredictions& predictions);
/// `exact`, `f1`, `total`, and what else the official script of the task prints (SquadScores).
Figures squad_figures(const SquadSet& set, Task task, const TextPredictions& predictions,
                      const NoAnswerScores& no_answer);

}  // namespace megalith::tasks
