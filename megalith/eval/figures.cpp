#include "megalith/eval/figures.h"

#include <array>
#include <cmath>
#include <map>
#include <numbers>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::eval {
namespace {

double as_double(Index count) { return static_cast<double>(count); }

Figures lambada_figures(std::span<const ExampleResult> results, double loss) {
  Index correct = 0;
  std::map<Index, Index> by_targets;
  for (const ExampleResult& one : results) {
    correct += one.correct ? 1 : 0;
    by_targets[one.targets] += one.correct ? 1 : 0;
  }
  const double examples = as_double(std::ssize(results));
  Figures figures = {{"accuracy", as_double(correct) / examples},
                     {"correct", as_double(correct)},
                     {"perplexity", std::exp(loss / examples)}};
  for (const auto& [targets, count] : by_targets) figures.emplace_back(str("correct_of_", targets), as_double(count));
  return figures;
}

}  // namespace

ExampleResult result_of(const Passage& passage, const PassageScore& score) {
  ExampleResult result{.targets = passage.targets(), .correct = !score.best_ids.empty()};
  for (const double one : score.log_probabilities) result.log_probability += one;
  for (std::size_t i = 0; i < score.best_ids.size(); ++i)
    result.correct &= score.best_ids[i] == passage.ids[static_cast<std::size_t>(passage.first_target) + i];
  return result;
}

Figures figures(Task task, const EvalSet& set, std::span<const ExampleResult> results) {
  double loss = 0;
  for (const ExampleResult& one : results) loss -= one.log_probability;
  const auto per = [&](const char* count) { return loss / as_double(set.count(count)); };
  switch (task) {
    case Task::loss:
      return {{"sum_loss", loss},
              {"loss", per("targets")},
              {"perplexity", std::exp(per("targets"))},
              {"bits_per_byte", per("bytes") / std::numbers::ln2}};
    case Task::wikitext_paper:
      return {{"sum_loss", loss},
              {"loss_per_subword", per("tokens")},
              {"unadjusted_perplexity", std::exp(per("tokens"))},
              {"adjusted_perplexity", std::exp(per("original_words"))},
              {"tokens_per_word", as_double(set.count("tokens")) / as_double(set.count("original_words"))}};
    case Task::wikitext_harness:
      return {{"sum_loss", loss},
              {"word_perplexity", std::exp(per("words"))},
              {"byte_perplexity", std::exp(per("bytes"))},
              {"bits_per_byte", per("bytes") / std::numbers::ln2}};
    case Task::lambada:
      return lambada_figures(results, loss);
    case Task::masked_loss:  // masked_figures()
    case Task::choice:       // choice_figures()
      break;
  }
  throw InternalError("[figures] task: is none of those that there are");
}

Figures masked_figures(std::span<const ExampleResult> results, SamplesHaveOrder order) {
  Index masked = 0, correct = 0;
  double sum = 0, order_sum = 0;
  for (const ExampleResult& one : results) {
    masked += one.targets;
    correct += one.correct ? 1 : 0;
    sum -= one.log_probability;
    order_sum -= one.order_log_probability;
  }
  const double samples = as_double(std::ssize(results)), mlm = sum / as_double(masked);
  if (order == SamplesHaveOrder::no)
    return {{"loss", mlm}, {"mlm_loss", mlm}, {"masked_tokens", as_double(masked)}, {"perplexity", std::exp(mlm)}};
  return {{"loss", mlm + order_sum / samples},
          {"mlm_loss", mlm},
          {"masked_tokens", as_double(masked)},
          {"order_loss", order_sum / samples},
          {"order_accuracy", as_double(correct) / samples},
          {"perplexity", std::exp(mlm)}};
}

std::span<const PaperRow> paper_rows() {
  static constexpr std::array<PaperRow, 4> kRows = {
      {{"355M", 19.31, 0.4518}, {"2.5B", 12.76, 0.6173}, {"8.3B", 10.81, 0.6651}, {"previous best", 15.79, 0.6324}}};
  return kRows;
}

}  // namespace megalith::eval
