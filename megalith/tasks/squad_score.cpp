#include "megalith/tasks/squad_score.h"

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/tasks/answer_text.h"

namespace megalith::tasks {
namespace {

/// A question's results, before thresholds.
struct Raw {
  double exact = 0, f1 = 0;
  bool has_answer = false;   // by the data, also where the answers have no words
  bool is_answered = false;  // by the prediction
};

/// Of the sizes of two multisets of words and of their intersection.
double f1_of(std::size_t shared, std::size_t answer, std::size_t prediction) {
  if (shared == 0) return 0;
  const double precision = static_cast<double>(shared) / static_cast<double>(prediction);
  const double recall = static_cast<double>(shared) / static_cast<double>(answer);
  return 2 * precision * recall / (precision + recall);
}

double f1_of_normalized(Task task, const std::string& answer, const std::string& prediction) {
  std::vector<std::string_view> a = words_of(answer), b = words_of(prediction);
  if (task == Task::squad2 && (a.empty() || b.empty())) return a.empty() && b.empty() ? 1 : 0;
  std::ranges::sort(a);
  std::ranges::sort(b);
  std::vector<std::string_view> shared;
  std::ranges::set_intersection(a, b, std::back_inserter(shared));
  return f1_of(shared.size(), a.size(), b.size());
}

Raw score_question(const SquadQuestion& question, Task task, const std::string& prediction) {
  Raw raw{.has_answer = !question.answers.empty(), .is_answered = !prediction.empty()};
  const std::string normal = normalized_answer(prediction);
  std::vector<std::string> answers;
  for (const SquadAnswer& answer : question.answers) {
    std::string text = normalized_answer(answer.text);
    if (task == Task::squad1 || !text.empty()) answers.push_back(std::move(text));
  }
  if (answers.empty()) answers.emplace_back();
  for (const std::string& answer : answers) {
    raw.exact = std::max(raw.exact, answer == normal ? 1.0 : 0.0);
    raw.f1 = std::max(raw.f1, f1_of_normalized(task, answer, normal));
  }
  return raw;
}

template <class Counts>
std::optional<SquadPart> part_of(const std::vector<Raw>& results, const Counts& counts) {
  SquadPart part;
  double exact = 0, f1 = 0;
  for (const Raw& raw : results) {
    if (!counts(raw)) continue;
    exact += raw.exact;
    f1 += raw.f1;
    ++part.total;
  }
  if (part.total == 0) return std::nullopt;
  part.exact = 100.0 * exact / static_cast<double>(part.total);
  part.f1 = 100.0 * f1 / static_cast<double>(part.total);
  return part;
}

/// Questions in ascending order of their numbers: at each, the score of answering those up to it.
BestThreshold best_threshold(const std::vector<Raw>& results, double Raw::*score,
                             const std::vector<std::pair<double, std::size_t>>& ascending) {
  double current = static_cast<double>(std::ranges::count(results, false, &Raw::has_answer));
  BestThreshold best;
  double most = current;
  for (const auto& [number, question] : ascending) {
    const Raw& raw = results[question];
    if (raw.has_answer)
      current += raw.*score;
    else if (raw.is_answered)
      current -= 1;
    if (current <= most) continue;
    most = current;
    best.threshold = number;
  }
  best.score = 100.0 * most / static_cast<double>(results.size());
  return best;
}

}  // namespace

double exact_match(std::string_view answer, std::string_view prediction) {
  return normalized_answer(answer) == normalized_answer(prediction) ? 1 : 0;
}

double word_f1(Task task, std::string_view answer, std::string_view prediction) {
  return f1_of_normalized(task, normalized_answer(answer), normalized_answer(prediction));
}

SquadScores score_squad(const SquadSet& set, Task task, const TextPredictions& predictions,
                        const NoAnswerScores& no_answer) {
  std::vector<Raw> results;
  std::unordered_map<std::string_view, std::size_t> numbers;
  for (const SquadQuestion& question : set.questions) {
    const auto found = predictions.find(question.id);
    if (found == predictions.end()) throw InternalError("[score_squad] predictions: lack an id of the data");
    numbers.emplace(question.id, results.size());
    results.push_back(score_question(question, task, found->second));
  }
  SquadScores scores;
  if (!no_answer.empty()) {
    std::vector<std::pair<double, std::size_t>> ascending;
    for (const auto& [id, number] : no_answer)
      if (const auto found = numbers.find(id); found != numbers.end()) ascending.emplace_back(number, found->second);
    std::ranges::stable_sort(ascending, {}, &std::pair<double, std::size_t>::first);
    scores.best_exact = best_threshold(results, &Raw::exact, ascending);
    scores.best_f1 = best_threshold(results, &Raw::f1, ascending);
    constexpr double kOfficialThreshold = 1.0;
    for (const auto& [number, question] : ascending) {
      Raw& raw = results[question];
      if (number > kOfficialThreshold) raw.exact = raw.f1 = raw.has_answer ? 0 : 1;
    }
  }
  scores.all = part_of(results, [](const Raw&) { return true; }).value_or(SquadPart());
  if (task == Task::squad2) {
    scores.has_answer = part_of(results, [](const Raw& raw) { return raw.has_answer; });
    scores.no_answer = part_of(results, [](const Raw& raw) { return !raw.has_answer; });
  }
  return scores;
}

}  // namespace megalith::tasks
