#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/eval/eval_set.h"
#include "megalith/eval/inference_model.h"

namespace megalith::eval {

/// How a set is judged.
enum class Task : std::uint8_t { loss, wikitext_paper, wikitext_harness, lambada, masked_loss, choice };

/// What is kept of a passage.
struct ExampleResult {
  double log_probability = 0;  ///< the sum over its targets
  Index targets = 0;
  /// Every target is the likeliest id; of a masked language model, the likelier order is the sample's. False where that
  /// was not asked for.
  bool correct = false;
  double order_log_probability = 0;  ///< of the sample's order, where a masked language model has one
  bool operator==(const ExampleResult&) const = default;
};
/// Sums in the order of the targets.
ExampleResult result_of(const Passage& passage, const PassageScore& score);

/// A figure of a report, and its name.
using Figures = std::vector<std::pair<std::string, double>>;

/// The figures of a task from the results of all its passages, which are summed in their order. With L the summed loss:
///   loss              sum_loss L, loss L / targets, perplexity exp(L / targets), bits_per_byte L / (bytes ln 2)
///   wikitext_paper    sum_loss L, loss_per_subword L / T, unadjusted_perplexity exp(L / T),
///                     adjusted_perplexity exp(L / T_o), tokens_per_word T / T_o
///   wikitext_harness  sum_loss L, word_perplexity exp(L / words), byte_perplexity exp(L / bytes),
///                     bits_per_byte L / (bytes ln 2)
///   lambada           accuracy, correct, perplexity exp(L / examples), and correct_of_N for every number N of target
///                     tokens that occurs; of lambada alone also from the results of some of the passages
/// Throws InternalError for masked_loss, and for choice, whose figures are choice_figures().
Figures figures(Task task, const EvalSet& set, std::span<const ExampleResult> results);

/// Whether samples of a masked language model are two segments in some order.
enum class SamplesHaveOrder : std::uint8_t { no, yes };
/// The figures of a masked language model, those of a run's own evaluation: loss = mlm_loss + order_loss, mlm_loss the
/// mean over masked_tokens, order_loss and order_accuracy means over samples, perplexity exp(mlm_loss). Without an
/// order loss = mlm_loss, and the figures of the order are missing.
Figures masked_figures(std::span<const ExampleResult> results, SamplesHaveOrder order);

/// A row of Shoeybi et al. 2019, arXiv:1909.08053, table 3.
struct PaperRow {
  std::string_view model;
  double wikitext_perplexity, lambada_accuracy;
};
std::span<const PaperRow> paper_rows();

}  // namespace megalith::eval
