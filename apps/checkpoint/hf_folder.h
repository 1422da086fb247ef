#pragma once
#include <memory>
#include <string>
#include <vector>

#include "megalith/config/run_config.h"
#include "megalith/convert/hf_model.h"
#include "megalith/io/fs.h"
#include "megalith/model/model_config.h"
#include "megalith/tasks/task.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::apps {

/// The tokenizer of a folder. Without one: why it is missing or cannot be used.
struct ImportedTokenizer {
  std::string name;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::string warning;
};

/// GPT-2's own vocabulary must be usable. An unusable one of another family is left out with a warning, as the model
/// works without it.
ImportedTokenizer find_tokenizer(io::Fs& fs, const io::Path& folder, const model::ModelConfig& model);

/// The keys of a model, as a recipe gives them: sections [model], [moe], [bert].
config::RunConfig keys_of(const model::ModelConfig& model);

/// The names that the library's data sets have for the classes of MNLI and QQP, by number; none for other tasks.
std::vector<std::string> hf_labels(tasks::Task task);

/// task.name of a folder's model; empty if it is not fine-tuned. It follows from the form of the head and the names of
/// classes, for SQuAD from the key finetuning_task. Throws InputError for a head that no task here has.
std::string task_of(const io::Path& folder, const convert::HfModel& model);

}  // namespace megalith::apps
