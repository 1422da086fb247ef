#include "apps/train/run_inputs.h"

#include <functional>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/team.h"
#include "megalith/config/keys.h"
#include "megalith/convert/hf_model.h"
#include "megalith/data/chat_samples.h"
#include "megalith/data/chat_template.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/reader.h"
#include "megalith/io/save_protocol.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {

namespace {

/// What is wrong with a run's files, of several checks.
class InputProblems {
 public:
  void keep(const std::function<void()>& check) {
    try {
      check();
    } catch (const ConfigError& error) {
      has_key_ = true;
      add(error);
    } catch (const InputError& error) {
      add(error);
    }
  }
  bool empty() const { return text_.empty(); }
  /// Throws ConfigError if a key is wrong, else InputError.
  void throw_if_any() const {
    if (has_key_) throw ConfigError(text_);
    if (!empty()) throw InputError(text_);
  }

 private:
  void add(const Error& error) { text_ += str(empty() ? "" : "\n", error.what()); }

  std::string text_;
  bool has_key_ = false;
};

/// A checkpoint keeps the template.
void set_chat_template(io::Fs& fs, const io::Path& vocabulary, config::RunPlan& plan) {
  if (plan.data.format != data::DataFormat::chat || !plan.data.chat_template.empty()) return;
  const data::ChatTemplate of_folder = data::chat_template_of_folder(fs, vocabulary);
  plan.data.chat_template = data::kChatTemplateNames[static_cast<std::size_t>(of_folder)];
}

/// The data and the tasks of a plan, and the template of conversations. Throws one error for all of these.
void open_files(io::Fs& fs, const io::Path& vocabulary, const tokenizer::Tokenizer& tokenizer, config::RunPlan& plan,
                RunInputs& inputs) {
  InputProblems problems;
  problems.keep([&] { set_chat_template(fs, vocabulary, plan); });
  const bool has_template = problems.empty();
  problems.keep([&] {
    if (!has_template) return data::check_chat_lines(fs, plan.data);
    inputs.data = train::open_run_data(fs, plan, tokenizer, usable_cores());
  });
  problems.keep([&] {
    inputs.choice_tasks =
        std::make_shared<const std::vector<train::ChoiceTask>>(train::open_choice_tasks(fs, plan, tokenizer));
  });
  problems.throw_if_any();
}

}  // namespace

RunInputs open_run_inputs(io::Fs& fs, config::RunPlan& plan) {
  const io::Path vocabulary = vocabulary_folder(fs, plan.data.tokenizer, plan.data.vocab_dir);
  const auto tokenizer = tokenizer::make_tokenizer(plan.data.tokenizer, vocabulary, fs);
  train::check_vocabulary(plan, *tokenizer);
  RunInputs inputs;
  open_files(fs, vocabulary, *tokenizer, plan, inputs);
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
