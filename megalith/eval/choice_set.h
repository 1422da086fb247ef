#pragma once
#include "megalith/eval/choice_file.h"
#include "megalith/eval/figures.h"

namespace megalith::eval {

/// Examples with their answers, which precede each question.
struct ChoiceShots {
  Index count = 0;  ///< the first so many questions of `source`
  ChoiceSource source = {};
};

/// Multiple-choice questions: each choice is a passage whose targets are the tokens of the choice, in the order of the
/// questions. As lm-evaluation-harness does:
/// - The text before a choice is ChoiceQuestion::before, each shot with its answer and an empty line, and the prompt.
///   White space at its end goes to the choice, which begins with a space.
/// - It is encoded alone and together with the choice; the tokens of the choice are those of the whole from there on.
///   Without any text the token that ends documents comes first.
/// - A passage longer than window + 1 tokens loses its beginning.
/// Counts: questions, choices, shots, context_tokens, target_tokens, passages_cut.
EvalSet choice_set(ChoiceForm form, const ChoiceSource& source, const tokenizer::Tokenizer& tokenizer, Index window,
                   const ChoiceShots& shots = {});

/// One file of a task that has several.
struct ChoiceSubject {
  std::string name;
  ChoiceSource source;
  ChoiceShots shots = {};
};
/// The same of several files, one after another. All shots have one count.
EvalSet choice_set(ChoiceForm form, std::span<const ChoiceSubject> subjects, const tokenizer::Tokenizer& tokenizer,
                   Index window);

/// From the log-probabilities l of all choices, with their first maximum as the answer:
///   acc        of l                         acc_stderr       sqrt(acc (1 - acc) / (questions - 1)), of two or more
///   acc_norm   of l / characters            acc_norm_stderr  the same
///   acc_bytes  of l / bytes of UTF-8
/// and the numbers of right answers, correct, correct_norm and correct_bytes. Lengths are those of the choice without
/// the space before it. Of several subjects the figures are over all questions, and a standard error is that of a group
/// of the harness, from those e of the subjects and their numbers n of questions, if all have two or more:
///   sqrt((sum (n - 1) n e^2) / (N - subjects) / N), with N = sum n
Figures choice_figures(const EvalSet& set, std::span<const ExampleResult> results);

/// The figures of each subject, as if its file were alone. Empty for a set of one file.
std::vector<std::pair<std::string, Figures>> subject_figures(const EvalSet& set,
                                                             std::span<const ExampleResult> results);

}  // namespace megalith::eval
