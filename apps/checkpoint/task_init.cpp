#include "apps/checkpoint/task_init.h"

#include <filesystem>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/config/task_rules.h"
#include "megalith/convert/hf_model.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/retrying_fs.h"
#include "megalith/io/save_protocol.h"
#include "megalith/tokenizer/tokenizer.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/hf_folder.h"
#include "apps/checkpoint/saved_model.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {
namespace {

CheckpointError refused_init(const std::string& text) {
  return {CheckpointError::Kind::refused, "[task.init] " + text};
}

/// A model of one token type cannot tell the sentences of a task apart.
void require_segments(const std::string& what, Index token_types) {
  if (constexpr Index kSegments = 2; token_types < kSegments)
    throw refused_init(str(what, " = ", token_types, ": must be at least 2: a task has two segments"));
}

/// The model that a run begins with.
struct TaskModel {
  std::string source;        ///< for messages
  config::RunConfig recipe;  ///< its model and tokenizer
  std::string vocab_dir;     ///< of the tokenizer; empty: the program's own files
  std::string no_tokenizer;  ///< why vocab_dir has none; empty: it has
};

TaskModel model_of_checkpoint(io::Fs& fs, const io::Path& given) {
  checkpoint::CheckpointReader reader(fs, checkpoint_folder(fs, given, checkpoint::OnCorrupt::previous));
  TaskModel found{.source = reader.folder().string(), .recipe = recipe_of(reader), .vocab_dir = {}, .no_tokenizer = {}};
  const config::RunConfig& recipe = found.recipe;
  if (recipe.model.family != "bert") {
    throw refused_init(str(found.source, ": model.family = ", recipe.model.family.value_or("gpt2"),
                           ": must be bert: an encoder is fine-tuned"));
  }
  if (recipe.model.token_types) require_segments(found.source + ": model.token_types", *recipe.model.token_types);
  data::DataConfig data;
  data.tokenizer = recipe.data.tokenizer.value_or(data.tokenizer);
  data.vocab_dir = recipe.data.vocab_dir.value_or("");
  found.vocab_dir = vocabulary_of(fs, reader, data);
  return found;
}

TaskModel model_of_hf(io::Fs& fs, const io::Path& folder) {
  const convert::HfModel hf = convert::read_hf_config(fs, folder);
  const std::string file = (folder / "config.json").string();
  if (!hf.config.is_bert()) {
    throw refused_init(str(file, ": model_type = ", convert::model_type_of(hf),
                           ": must be bert or megatron-bert: an encoder is fine-tuned"));
  }
  require_segments(file + ": type_vocab_size", hf.config.token_types);
  // Rows of a head in another order would be taken as those of the task's classes. Heads of spans have one meaning.
  if (hf.config.task && hf.config.task->form == nn::TaskForm::classes) task_of(folder, hf);
  const ImportedTokenizer tokenizer = find_tokenizer(fs, folder, hf.config);
  TaskModel found{.source = folder.string(),
                  .recipe = keys_of(hf.config),
                  .vocab_dir = std::filesystem::absolute(folder).string(),
                  .no_tokenizer = tokenizer.warning};
  found.recipe.data.tokenizer = tokenizer.name;
  return found;
}

/// Where the model of task.init is now. A run that resumes has its own checkpoints, and reads no Hugging Face folder.
TaskModel find_task_model(io::Fs& fs, const std::string& init, const io::Path& own) {
  const bool is_there = fs.is_dir(init), may_use_own = !own.empty() && fs.is_dir(own);
  const bool is_hf = is_there && convert::is_hf_folder(fs, init);
  if (may_use_own && (!is_there || (is_hf && !io::published(fs, own).empty()))) return model_of_checkpoint(fs, own);
  if (!is_there) {
    throw InputError(str("task.init = ", init, ": there is no such folder of a checkpoint", io::looked_for_in(init),
                         ", and no model of Hugging Face; nothing is downloaded"));
  }
  return is_hf ? model_of_hf(fs, init) : model_of_checkpoint(fs, init);
}

/// Ids are words of the model's vocabulary: another tokenizer would give it other words, or cut them otherwise, without
/// an error.
void check_words(io::Fs& fs, const TaskModel& model, const config::RunConfig& asked) {
  const std::string tokenizer = model.recipe.data.tokenizer.value_or(""), &own = *asked.data.vocab_dir;
  const auto hash_of = [&](const std::string& folder) { return open_tokenizer(fs, tokenizer, folder)->content_hash(); };
  if (hash_of(own) == hash_of(model.vocab_dir)) return;
  throw refused_init(str(model.source, " has another tokenizer than data.vocab_dir = ", own,
                         " (other words, or other rules to cut them); remove data.vocab_dir"));
}

}  // namespace

config::RunConfig with_task_model(io::Fs& fs, config::RunConfig asked, const io::Path& instead) {
  const std::string init = asked.task.name ? asked.task.init.value_or("") : "";
  if (init.empty()) return asked;
  const TaskModel found = find_task_model(fs, init, instead);
  std::vector<std::string> refused;
  config::take_model(found.recipe, asked, refused);
  if (!refused.empty()) {
    std::string text = found.source + " does not fit the recipe:";
    for (const std::string& line : refused) text += "\n  " + line;
    throw refused_init(text);
  }
  if (asked.data.vocab_dir) {
    if (found.no_tokenizer.empty() && !found.vocab_dir.empty()) check_words(fs, found, asked);
    return asked;
  }
  if (!found.no_tokenizer.empty())
    throw InputError(
        str("[task.init] ", found.no_tokenizer, ": give data.vocab_dir, a folder of the model's vocabulary"));
  if (!found.vocab_dir.empty()) asked.data.vocab_dir = found.vocab_dir;
  return asked;
}

config::RunPlan plan_of(const RecipeOptions& options) {
  const std::shared_ptr<io::Fs> fs = io::retrying_fs(io::posix_fs());
  return config::resolve(with_task_model(*fs, options.parse()), options.ranks, count_ids(*fs));
}

}  // namespace megalith::apps
