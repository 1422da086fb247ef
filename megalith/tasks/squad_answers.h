#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "megalith/tasks/squad_windows.h"

namespace megalith::tasks {

struct SquadAnswerConfig {
  Task task = Task::squad1;
  Index n_best = 20;               ///< first and last tokens that a window offers, and answers that are kept
  Index max_tokens = 30;           ///< of an answer
  double no_answer_threshold = 0;  ///< squad2: no_answer_score above it gives the answer ""
};

/// An answer that a model considers.
struct SpanAnswer {
  std::string text;        ///< as the context spells it; "" for no answer
  TextRange range;         ///< in the context
  double score = 0;        ///< sum of the logits of the first and of the last token
  double probability = 0;  ///< softmax of the scores of those that are kept
};

struct SquadPrediction {
  std::string text;
  std::vector<SpanAnswer> n_best;  ///< by descending score, with different texts
  /// The lowest score of the [CLS] of a window, less that of the best answer with a text: the number for --na-probs.
  double no_answer_score = 0;
};

/// The logits of a window, by place in its sequence; at least as many as the window has tokens.
struct SpanLogits {
  std::span<const float> start, end;
};

/// The answer to a question from the logits of its windows. Of each window, the n_best first and last tokens of its
/// context with the highest logits are combined: last not before first, at most max_tokens tokens, and the first token
/// where this window has the most context around it. Equal scores keep the order of windows and tokens.
/// `logits_of(window)`: of windows windows.windows_of(question).
/// Source: google-research/bert, run_squad.py, write_predictions.
SquadPrediction answer_question(const SquadWindows& windows, Index question, const SquadAnswerConfig& config,
                                const std::function<SpanLogits(Index window)>& logits_of);

}  // namespace megalith::tasks
