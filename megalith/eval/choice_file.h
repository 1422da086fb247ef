#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/eval/eval_set.h"

namespace megalith::eval {

/// The forms of files of multiple-choice questions: megalith's own, and those that the data sets are published in.
enum class ChoiceForm : std::uint8_t { choice, hellaswag, arc, piqa, mmlu };
inline constexpr std::array<std::string_view, 5> kChoiceForms = {"choice", "hellaswag", "arc", "piqa", "mmlu"};
std::optional<ChoiceForm> choice_form_named(std::string_view name);

/// A question as a model reads it.
struct ChoiceQuestion {
  std::string before = {};  ///< a description of the task; empty for most forms
  std::string prompt;       ///< an answer follows it after a space
  std::vector<std::string> choices;
  std::size_t answer = 0;
  Index line = 1;  ///< of the file, for errors
};

/// A file of questions. piqa: its labels lie in a second one, unless the lines of the first have them.
struct ChoiceSource {
  SourceText data;
  SourceText labels = {};
};

/// The questions of a file, with the prompts and choices that the tasks hellaswag, arc_easy, arc_challenge, piqa and
/// mmlu of lm-evaluation-harness 0.4.13 make of the data:
///   - choice: lines {"question", "choices", "answer"}: the question itself. answer: its number from 0, or a letter
///   - hellaswag: lines {"activity_label", "ctx_a", "ctx_b", "endings", "label"}: "LABEL: CTX_A Ctx_b", cleaned
///   - arc: lines {"question": {"stem", "choices": [{"text", "label"}]}, "answerKey"}, or with question a text and
///     choices {"text": [], "label": []}: "Question: ...\nAnswer:"
///   - piqa: lines {"goal", "sol1", "sol2"} and labels, a line of 0 or 1 each: "Question: ...\nAnswer:"
///   - mmlu: rows of csv, question, four choices, A to D: the question, lines "A. ..." to "D. ...", "Answer:"; the
///     choices are the letters. `before` names the subject, which is that of the file's name
/// Adds problems to `set`.
/// Source: EleutherAI/lm-evaluation-harness, lm_eval/tasks.
std::vector<ChoiceQuestion> read_choice_questions(ChoiceForm form, const ChoiceSource& source, EvalSet& set);

/// "high_school_biology" of "data/test/high_school_biology_test.csv": the subject of a file of MMLU.
std::string mmlu_subject(std::string_view file);

/// The rows of a text in csv as Python's csv.reader reads them, with the lines at which they begin. Blank lines have no
/// row.
struct CsvRow {
  std::vector<std::string> fields;
  Index line = 1;
};
std::vector<CsvRow> csv_rows(std::string_view text);

/// preprocess() of the harness's hellaswag: without white space at both ends and without brackets, " [title]" as ". ",
/// each pair of spaces as one.
std::string clean_hellaswag(std::string_view text);

}  // namespace megalith::eval
