#include "apps/train/run_inputs.h"

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/team.h"
#include "megalith/config/keys.h"
#include "megalith/convert/hf_model.h"
#include "megalith/data/chat_template.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/reader.h"
#include "megalith/io/save_protocol.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {

namespace {

/// The data and the tasks of a plan. Throws one InputError for both.
void open_files(io::Fs& fs, const config::RunPlan& plan, const tokenizer::Tokenizer& tokenizer, RunInputs& inputs) {
  std::string broken_tasks;
  try {
    inputs.choice_tasks =
        std::make_shared<const std::vector<train::ChoiceTask>>(train::open_choice_tasks(fs, plan, tokenizer));
  } catch (const InputError& error) {
    broken_tasks = error.what();
  }
  try {
    inputs.data = train::open_run_data(fs, plan, tokenizer, usable_cores());
  } catch (const InputError& error) {
    if (broken_tasks.empty()) throw;
    throw InputError(str(error.what(), '\n', broken_tasks));
  }
  if (!broken_tasks.empty()) throw InputError(broken_tasks);
}

}  // namespace

RunInputs open_run_inputs(io::Fs& fs, config::RunPlan& plan) {
  const io::Path vocabulary = vocabulary_folder(fs, plan.data.tokenizer, plan.data.vocab_dir);
  const auto tokenizer = tokenizer::make_tokenizer(plan.data.tokenizer, vocabulary, fs);
  train::check_vocabulary(plan, *tokenizer);
  if (plan.data.format == data::DataFormat::chat && plan.data.chat_template.empty()) {  // a checkpoint keeps it
    const data::ChatTemplate of_folder = data::chat_template_of_folder(fs, vocabulary);
    plan.data.chat_template = data::kChatTemplateNames[static_cast<std::size_t>(of_folder)];
  }
  RunInputs inputs;
  open_files(fs, plan, *tokenizer, inputs);
  config::set_samples(inputs.data->train().samples, plan);
  inputs.identity = {.tokenizer = tokenizer->content_hash(),
                     .corpus = inputs.data->train().fingerprint,
                     .vocabulary = tokenizer::read_vocabulary_files(fs, plan.data.tokenizer, vocabulary),
                     .unicode = tokenizer->unicode_version()};
  return inputs;
}

void print_notes(const config::RunPlan& plan, const data::DataNotes& notes) {
  for (const std::string& folder : notes.folders) log::info(folder);
  for (const std::string& packed : notes.packed) log::info(packed);
  for (const std::string& documents : notes.left_out) log::warning(documents);
  if (plan.data.key != data::DataConfig().key && !notes.has_members)
    log::warning(str("data.key = ", io::printable(plan.data.key),
                     ": has no effect: no file of data.train or data.valid is JSON lines or Parquet"));
}

io::Path init_of(io::Fs& fs, const config::RunPlan& plan, const io::Path& out, train::Resume resume) {
  const std::string& init = plan.init();
  const std::string key = str(plan.init_key(), " = ", init);
  if (init.empty()) return {};
  if (resume != train::Resume::no && !io::published(fs, train::checkpoint_folder(plan, out)).empty()) return {};
  if (!fs.is_dir(init))
    throw InputError(str(key, ": there is no such folder of a checkpoint", io::looked_for_in(init),
                         "; nothing is downloaded: of a model of Hugging Face, such as gpt2, `megalith checkpoint "
                         "import-hf FOLDER --out OUT` makes one, from the folder of its files"));
  if (convert::is_hf_folder(fs, init)) {
    if (!plan.task.is_set()) {
      throw InputError(str(key,
                           ": is a Hugging Face folder; make a checkpoint of it, `megalith "
                           "checkpoint import-hf ",
                           init, " --out OUT`, and give ", plan.init_key(), " that OUT"));
    }
    convert::HfReader(fs, init, convert::read_hf_config(fs, init), plan.train.seed).check_tensors();
    return init;
  }
  return checkpoint_folder(fs, init, checkpoint::OnCorrupt::previous);
}

}  // namespace megalith::apps
