#pragma once
#include <optional>

#include "megalith/tasks/predictions.h"
#include "megalith/tasks/squad.h"

namespace megalith::tasks {

/// Exact matches and the mean F1 of words, both in percent.
struct SquadPart {
  double exact = 0, f1 = 0;
  Index total = 0;
};

/// The highest score over all thresholds of "no answer", in percent, and the lowest threshold that gives it. Where a
/// question's number is above the threshold, the answer is "".
struct BestThreshold {
  double score = 0, threshold = 0;
};

struct SquadScores {
  SquadPart all;
  std::optional<SquadPart> has_answer, no_answer;    ///< squad2, where there are such questions
  std::optional<BestThreshold> best_exact, best_f1;  ///< with no-answer scores
};

/// A prediction against one answer. F1 is that of the multisets of words. Both empty after normalization: exact 1, and
/// F1 0 for squad1, 1 for squad2.
double exact_match(std::string_view answer, std::string_view prediction);
double word_f1(Task task, std::string_view answer, std::string_view prediction);

/// Scores predictions as the official script of the task does, to the last bit of its sums. A question counts its best
/// answer. For squad2 answers without words are left out, and a question without an answer then has the answer "".
/// `no_answer`: where its number is above 1, which is the official default, the answer counts as "".
/// All questions must have a prediction, and a no-answer score if there are any (require_predictions()); ids of other
/// questions count in the best thresholds' order only, that is not at all.
/// Sources: evaluate-v1.1.py and evaluate-v2.0.py of SQuAD-explorer.
SquadScores score_squad(const SquadSet& set, Task task, const TextPredictions& predictions,
                        const NoAnswerScores& no_answer = {});

}  // namespace megalith::tasks
