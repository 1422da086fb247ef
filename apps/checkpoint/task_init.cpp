#include "apps/checkpoint/task_init.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/config/task_rules.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/retrying_fs.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/saved_model.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {

config::RunConfig with_task_model(io::Fs& fs, config::RunConfig asked, const io::Path& instead) {
  const std::string init = asked.task.name ? asked.task.init.value_or("") : "";
  if (init.empty()) return asked;
  const io::Path given = !fs.is_dir(init) && !instead.empty() && fs.is_dir(instead) ? instead : io::Path(init);
  if (!fs.is_dir(given))
    throw InputError(str("task.init = ", init, ": there is no such folder of a checkpoint", io::looked_for_in(init)));
  checkpoint::CheckpointReader reader(fs, checkpoint_folder(fs, given, checkpoint::OnCorrupt::previous));
  const config::RunConfig theirs = recipe_of(reader);
  const std::string folder = reader.folder().string();
  if (theirs.model.family != "bert") {
    throw CheckpointError(CheckpointError::Kind::refused,
                          str("[task.init] ", folder, ": model.family = ", theirs.model.family.value_or("gpt2"),
                              ": must be bert: an encoder is fine-tuned"));
  }
  std::vector<std::string> refused;
  config::take_model(theirs, asked, refused);
  if (!refused.empty()) {
    std::string text = str("[task.init] ", folder, " does not fit the recipe:");
    for (const std::string& line : refused) text += "\n  " + line;
    throw CheckpointError(CheckpointError::Kind::refused, text);
  }
  if (!asked.data.vocab_dir) {
    data::DataConfig data;
    data.tokenizer = theirs.data.tokenizer.value_or(data.tokenizer);
    data.vocab_dir = theirs.data.vocab_dir.value_or("");
    if (const std::string files = vocabulary_of(fs, reader, data); !files.empty()) asked.data.vocab_dir = files;
  }
  return asked;
}

config::RunPlan plan_of(const RecipeOptions& options) {
  const std::shared_ptr<io::Fs> fs = io::retrying_fs(io::posix_fs());
  return config::resolve(with_task_model(*fs, options.parse()), options.ranks, count_ids(*fs));
}

}  // namespace megalith::apps
