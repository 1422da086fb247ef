#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "megalith/base/problems.h"
#include "megalith/eval/choice_file.h"

namespace megalith::eval {

/// What a multiple-choice task has besides its file of questions.
struct ChoiceOptions {
  ChoiceForm form = ChoiceForm::choice;
  std::string labels = {};      ///< piqa; empty: NAME-labels.lst beside the questions, if it is there
  Index shots = 0;              ///< examples with their answers before each question
  std::string shots_data = {};  ///< the file whose first questions they are
};
inline constexpr Index kMaxShots = 1000;

/// Adds what is wrong with the options of a task whose questions are in the file `data`, by their names on the command
/// line: --labels, --shots and --shots-data.
void check(const ChoiceOptions& options, std::string_view data, Problems& out);

/// A task as a recipe names it (eval.tasks): "hellaswag:hellaswag_val.jsonl", or with options of `eval` after the file:
/// "mmlu:anatomy_test.csv --shots 5 --shots-data anatomy_dev.csv".
struct ChoiceTaskName {
  std::string file;
  ChoiceOptions options = {};
  std::string series() const;  ///< of its results: "hellaswag/hellaswag_val", "mmlu/anatomy_test/5-shot"
};
/// Nothing if the text is no task: then `out` has what is wrong with it, each rule with `key` and the text.
std::optional<ChoiceTaskName> choice_task_named(std::string_view key, std::string_view text, Problems& out);

}  // namespace megalith::eval
