#include "megalith/tasks/squad_answers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::tasks {
namespace {

void expect_answerable(const SpanLogits& logits, const SquadAnswerConfig& config) {
  if (config.n_best < 1 || config.max_tokens < 1)
    throw ConfigError(str("[answer_question] n_best = ", config.n_best, ", max_tokens = ", config.max_tokens,
                          ": must be at least 1"));
  const auto is_finite = [](float logit) { return std::isfinite(logit); };
  if (!std::ranges::all_of(logits.start, is_finite) || !std::ranges::all_of(logits.end, is_finite))
    throw InputError("[answer_question] a logit is not finite");
}

/// Tokens [first, last] of a context.
struct Candidate {
  Index first = 0, last = 0;
  double score = 0;
};

/// Places [begin, begin + count) of the highest logits, at most `most` of them.
std::vector<Index> best_places(std::span<const float> logits, Index begin, Index count, Index most) {
  std::vector<Index> places(static_cast<std::size_t>(count));
  std::iota(places.begin(), places.end(), begin);
  std::ranges::stable_sort(places, std::greater<>(), [&](Index at) { return logits[static_cast<std::size_t>(at)]; });
  places.resize(static_cast<std::size_t>(std::min(count, most)));
  return places;
}

void add_candidates(const SquadWindows& windows, Index window, const SpanLogits& logits,
                    const SquadAnswerConfig& config, std::vector<Candidate>& candidates) {
  const SquadWindow& w = windows.windows()[static_cast<std::size_t>(window)];
  const Index begin = windows.context_begin(window);
  const std::vector<Index> ends = best_places(logits.end, begin, w.count, config.n_best);
  for (const Index start : best_places(logits.start, begin, w.count, config.n_best)) {
    const Index first = start - begin + w.first;
    if (!windows.has_most_context(window, first)) continue;
    for (const Index end : ends) {
      if (end < start || end - start >= config.max_tokens) continue;
      const double score = static_cast<double>(logits.start[static_cast<std::size_t>(start)]) +
                           static_cast<double>(logits.end[static_cast<std::size_t>(end)]);
      candidates.push_back({.first = first, .last = end - begin + w.first, .score = score});
    }
  }
}

void set_probabilities(std::vector<SpanAnswer>& answers) {
  double most = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const SpanAnswer& answer : answers) most = std::max(most, answer.score);
  for (SpanAnswer& answer : answers) sum += answer.probability = std::exp(answer.score - most);
  for (SpanAnswer& answer : answers) answer.probability /= sum;
}

}  // namespace

SquadPrediction answer_question(const SquadWindows& windows, Index question, const SquadAnswerConfig& config,
                                const std::function<SpanLogits(Index window)>& logits_of) {
  std::vector<Candidate> candidates;
  double none = std::numeric_limits<float>::max();
  const TextRange numbers = windows.windows_of(question);
  for (Index window = numbers.begin; window < numbers.end; ++window) {
    const SpanLogits logits = logits_of(window);
    expect_answerable(logits, config);
    none = std::min(none, static_cast<double>(logits.start.front()) + static_cast<double>(logits.end.front()));
    add_candidates(windows, window, logits, config, candidates);
  }
  std::ranges::stable_sort(candidates, std::greater<>(), &Candidate::score);

  const PlacedTokens& placed = windows.context_of(question);
  const SquadQuestion& asked = windows.set().questions[static_cast<std::size_t>(question)];
  const std::string& context = windows.set().contexts[static_cast<std::size_t>(asked.context)];
  SquadPrediction prediction;
  std::vector<SpanAnswer>& answers = prediction.n_best;
  for (const Candidate& candidate : candidates) {
    if (std::ssize(answers) == config.n_best) break;
    const TextRange range{placed.ranges[static_cast<std::size_t>(candidate.first)].begin,
                          placed.ranges[static_cast<std::size_t>(candidate.last)].end};
    std::string text = context.substr(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
    if (text.empty() || std::ranges::find(answers, text, &SpanAnswer::text) != answers.end()) continue;
    answers.push_back({.text = std::move(text), .range = range, .score = candidate.score});
  }
  prediction.no_answer_score = answers.empty() ? std::numeric_limits<float>::max() : none - answers.front().score;
  if (!answers.empty()) prediction.text = answers.front().text;
  if (config.task == Task::squad2) {
    if (prediction.no_answer_score > config.no_answer_threshold) prediction.text.clear();
    const auto place = std::ranges::find_if(answers, [&](const SpanAnswer& answer) { return answer.score < none; });
    answers.insert(place, SpanAnswer{.text = {}, .range = {}, .score = none});
    if (std::ssize(answers) > config.n_best && answers[answers.size() - 1].text.empty())
      answers.erase(answers.end() - 2);  // the empty one stays among them
    answers.resize(std::min(answers.size(), static_cast<std::size_t>(config.n_best)));
  }
  set_probabilities(answers);
  return prediction;
}

}  // namespace megalith::tasks
