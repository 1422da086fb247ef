#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/config/run_plan.h"
#include "megalith/eval/choice_set.h"

#include "apps/eval/eval_data.h"

namespace megalith::apps {

/// The figures of the examples that occur in training text, and of the others.
struct OverlapFigures {
  std::string folder;  ///< the output of `data overlap`
  Index overlapping = 0, others = 0;
  eval::Figures of_overlapping, of_others;
};

/// The content of a report of an evaluation.
struct EvalReport {
  eval::Task task = eval::Task::loss;
  eval::ChoiceForm form = eval::ChoiceForm::choice;  ///< of Task::choice
  std::string data, data_checksum;
  std::vector<EvalData::File> more_files = {};
  std::string checkpoint, digest;
  std::string vocab_dir;  ///< of the tokenizer; empty: it has no files, or those of the program
  const config::RunPlan& plan;
  Index batch = 1, window = 1;
  Index stride = 0;            ///< 0: windows do not slide
  BytesByOwner memory = {};    ///< that rank 0 allocated
  Index resumed_examples = 0;  ///< whose results came from the file of an interrupted evaluation
  double seconds = 0;          ///< of all passes
  Index computed_tokens = 0;   ///< read by the passes of this evaluation, without padding
  const eval::EvalSet& set;
  eval::Figures figures;
  std::vector<std::pair<std::string, eval::Figures>> subjects = {};  ///< of a folder of multiple-choice questions
  std::optional<OverlapFigures> overlap = {};
};

/// "wikitext", and its protocol: "paper", "harness"; for others "windows", "last word" and, of multiple choice, whose
/// name is that of the form, "lm-evaluation-harness".
std::string_view task_name(eval::Task task, eval::ChoiceForm form);
std::string_view protocol_name(eval::Task task);

/// How samples of a masked language model are made.
std::string samples_text(const config::RunPlan& plan);

/// One line per figure that exceeds 64 bits: the text prints inf, and JSON null.
std::vector<std::string> figure_warnings(const EvalReport& report);

/// Lines of a name and a value. For tasks of the paper, also its table 3.
std::string report_text(const EvalReport& report);
/// The same as one JSON object, with a line end.
std::string report_json(const EvalReport& report);

}  // namespace megalith::apps
