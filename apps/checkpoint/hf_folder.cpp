#include "apps/checkpoint/hf_folder.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/config/run_plan.h"
#include "megalith/config/task_rules.h"
#include "megalith/convert/hf_config.h"
#include "megalith/io/reader.h"
#include "megalith/tokenizer/vocabulary_files.h"

namespace megalith::apps {
namespace {

constexpr Index kBytes = 256;  // the vocabulary of the byte tokenizer

/// Whether BERT's tokenizer of a folder lowers letters: by tokenizer_config.json, else by tokenizer.json, else as the
/// library's class does. Throws InputError for options that vocab.txt is not read with here.
bool lowers_letters(io::Fs& fs, const io::Path& folder) {
  constexpr const char* kLowered = "do_lower_case";
  std::optional<bool> lowered;
  if (const io::Path file = folder / "tokenizer.json"; fs.exists(file)) {
    const convert::HfConfig whole(fs, file);
    if (whole.has("normalizer") && whole.object("normalizer").has("lowercase"))
      lowered = whole.object("normalizer").flag_or("lowercase", true);
  }
  const io::Path file = folder / "tokenizer_config.json";
  if (!fs.exists(file)) return lowered.value_or(true);
  const convert::HfConfig options(fs, file);
  const bool is_lowered = options.flag_or(kLowered, lowered.value_or(true));
  if (fs.exists(folder / "vocab.txt")) {
    options.expect_or_null("strip_accents", is_lowered, str("must be null or that of ", kLowered));
    options.expect_or_null("tokenize_chinese_chars", true, "must be true");
  }
  return is_lowered;
}

/// Tokenizers that the folder may have, the likeliest first.
std::vector<std::string> possible_tokenizers(io::Fs& fs, const io::Path& folder, const model::ModelConfig& model) {
  if (model.vocab_size == kBytes) return {"byte"};
  if (model.family == "gpt2") return {"gpt2"};
  if (model.is_bert()) return {lowers_letters(fs, folder) ? "bert-uncased" : "bert-cased"};
  if (!fs.exists(folder / "tokenizer.model")) return {"bpe"};
  if (!fs.exists(folder / "tokenizer.json")) return {"sentencepiece"};
  return {"bpe", "sentencepiece"};  // Llama 2's tokenizer.json is of another kind; its source is next to it
}

}  // namespace

ImportedTokenizer find_tokenizer(io::Fs& fs, const io::Path& folder, const model::ModelConfig& model) {
  std::vector<std::string> names;
  ImportedTokenizer found{.name = model.is_bert() ? "bert-uncased" : "", .tokenizer = {}, .warning = {}};
  const auto unusable = [&](const Error& error) {
    return str("the tokenizer of ", folder.string(), " cannot be used: ", error.what());
  };
  try {
    names = possible_tokenizers(fs, folder, model);
  } catch (const InputError& error) {
    found.warning = unusable(error);
    return found;
  }
  found.name = names.front();
  if (found.name != "byte" && !tokenizer::has_vocabulary(fs, folder)) {
    found.warning = str(folder.string(), " holds no tokenizer (",
                        model.is_bert() ? "vocab.txt" : "vocab.json and merges.txt", ", or tokenizer.json)");
    return found;
  }
  for (const std::string& name : names) {
    try {
      const auto tokenizer = tokenizer::make_tokenizer(name, folder, fs);
      if (tokenizer->vocab_size() <= model.vocab_size || name == "gpt2") return {name, tokenizer, {}};
      found.warning = str("the tokenizer of ", folder.string(), " has ", tokenizer->vocab_size(),
                          " ids, more than config.json's vocab_size = ", model.vocab_size);
    } catch (const Error& error) {
      if (name == "gpt2" || error.code() == ExitCode::io) throw;
      if (found.warning.empty()) found.warning = unusable(error);
    }
  }
  return found;
}

config::RunConfig keys_of(const model::ModelConfig& model) {
  config::RunPlan described;
  described.model = model;
  const config::RunConfig all = described.as_config();
  config::RunConfig keys;
  keys.model = all.model;
  keys.model.padded_vocab_size.reset();  // follows from tp
  keys.moe = all.moe;
  if (!model.task) keys.bert = all.bert;
  return keys;
}

std::vector<std::string> hf_labels(tasks::Task task) {
  if (task == tasks::Task::qqp) return {"not_duplicate", "duplicate"};
  if (task != tasks::Task::mnli) return {};
  const auto classes = tasks::classes_of(task);
  return {classes.begin(), classes.end()};
}

std::string task_of(const io::Path& folder, const convert::HfModel& model) {
  if (!model.config.task) return {};
  const nn::TaskHeadSpec& head = *model.config.task;
  std::vector<std::string> labels = model.labels;
  for (std::string& label : labels)
    std::ranges::transform(label, label.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  for (int i = 0; i < tasks::kNumTasks; ++i) {
    const auto task = static_cast<tasks::Task>(i);
    const bool is_named = head.form != nn::TaskForm::spans || model.task == tasks::name_of(task);
    if (config::task_head(task).form == head.form && is_named && labels == hf_labels(task))
      return std::string(tasks::name_of(task));
  }
  const std::string file = str("[", (folder / "config.json").string(), "] ");
  if (head.form == nn::TaskForm::spans)
    throw InputError(str(file, "finetuning_task = \"", io::printable(model.task), "\": must be squad1 or squad2"));
  throw InputError(
      str(file,
          "id2label: must be entailment, neutral, contradiction (mnli), or not_duplicate, duplicate (qqp), "
          "in this order: other classes are of no task here"));
}

}  // namespace megalith::apps
