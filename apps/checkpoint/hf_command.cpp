#include <cstdio>
#include <memory>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/names.h"
#include "megalith/base/str.h"
#include "megalith/convert/hf_model.h"
#include "megalith/convert/hf_tokenizer.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/run_lock.h"
#include "megalith/io/save_protocol.h"
#include "megalith/tokenizer/tokenizer.h"
#include "megalith/train/imported_model.h"
#include "megalith/train/trainer.h"

#include "apps/checkpoint/hf_folder.h"
#include "apps/checkpoint/saved_model.h"
#include "apps/program/command.h"
#include "apps/program/launch.h"
#include "apps/program/output_path.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {
namespace {

struct HfOptions {
  std::string from, to;
};

/// The recipe of a model that was trained elsewhere: no steps, and no data yet.
config::RunPlan imported_plan(const convert::HfModel& hf, const std::string& tokenizer, const io::Path& folder) {
  config::RunConfig c = keys_of(hf.config);
  c.source = folder.string();
  if (const std::string task = task_of(folder, hf); !task.empty()) c.task.name = task;
  c.train.steps = 0;
  c.data.tokenizer = tokenizer;
  c.data.vocab_dir = std::filesystem::absolute(folder).string();
  return config::resolve(c);
}

void import_hf(const HfOptions& options) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  const io::Path out = options.to;
  const convert::HfModel hf = convert::read_hf_config(*fs, options.from);
  const ImportedTokenizer vocabulary = find_tokenizer(*fs, options.from, hf.config);
  const config::RunPlan plan = imported_plan(hf, vocabulary.name, options.from);
  convert::HfReader reader(*fs, options.from, hf, plan.train.seed);
  reader.check_tensors();
  if (const std::string heads = reader.warning(); !heads.empty()) log::warning(heads);
  train::DataIdentity identity;  // unknown
  if (const auto& tokenizer = vocabulary.tokenizer) {
    identity = {.tokenizer = tokenizer->content_hash(),
                .vocabulary = tokenizer::read_vocabulary_files(*fs, plan.data.tokenizer, plan.data.vocab_dir),
                .unicode = tokenizer->unicode_version()};
  } else {
    log::warning(vocabulary.warning + ": give --vocab-dir to generate");
  }
  const io::Path folder = train::checkpoint_folder(plan, out);
  if (!io::published(*fs, folder).empty())
    throw ConfigError(str("--out = ", out.string(), ": holds checkpoints already; choose another"));
  const io::RunLock lock = io::RunLock::take(out);
  const checkpoint::Digest128 digest = train::save_imported_model(
      plan, identity, *fs, folder, [&](const TensorSlice& param, const Tensor& values) { reader.read(param, values); });
  std::printf("%s: %s, state digest %s\n", (folder / io::StepFolder{0}.name()).c_str(),
              model::parameters_text(plan.model).c_str(), digest.hex().c_str());
  io::publish_file(*fs, out / "recipe.toml", config::to_toml(plan.as_config()));
}

/// Nothing if a tokenizer other than GPT-2's cannot be used. The import printed a warning then.
std::shared_ptr<const tokenizer::Tokenizer> exported_tokenizer(io::Fs& fs, const config::RunPlan& plan,
                                                               const io::Path& vocabulary) {
  const std::string& name = plan.data.tokenizer;
  if (name != "byte" && !tokenizer::has_vocabulary(fs, vocabulary)) {
    log::warning(str("data.vocab_dir = ", vocabulary.string(), " holds no vocabulary: no tokenizer was exported",
                     io::looked_for_in(vocabulary)));
    return nullptr;
  }
  try {
    auto tokenizer = tokenizer::make_tokenizer(name, vocabulary, fs);
    if (tokenizer->vocab_size() <= plan.model.vocab_size || name == "gpt2") return tokenizer;
    log::warning(str("no tokenizer was exported: that of ", vocabulary.string(), " has more ids than the model"));
  } catch (const InputError& error) {
    if (name == "gpt2") throw;
    log::warning(str("no tokenizer was exported: ", error.what()));
  }
  return nullptr;
}

/// Writes all files of the export into a folder that is not published yet. Returns whether it has a tokenizer.
bool fill(io::Fs& fs, const io::Path& staging, const config::RunPlan& plan, const ReadValues& read) {
  convert::HfExport exported{.end_of_document = static_cast<std::int32_t>(plan.model.vocab_size) - 1};
  if (const auto task = tasks::task_named(plan.task.name)) {
    exported.task = plan.task.name;
    exported.labels = hf_labels(*task);
  }
  const io::Path vocabulary = vocabulary_folder(fs, plan.data.tokenizer, plan.data.vocab_dir);
  const auto tokenizer = exported_tokenizer(fs, plan, vocabulary);
  if (tokenizer != nullptr) {
    exported.end_of_document = tokenizer->end_of_document();
    exported.padding = tokenizer->special(tokenizer::Special::pad);
    const auto chat = enumerator_of<data::ChatTemplate>(data::kChatTemplateNames, plan.data.chat_template);
    if (chat) {
      const data::ChatEncoder encoder(*chat, *tokenizer);
      exported.end_of_answer = encoder.end_of_answer();
      exported.start_of_text = encoder.start_of_text();
    }
    const tokenizer::VocabularyFiles files = tokenizer::read_vocabulary_files(fs, plan.data.tokenizer, vocabulary);
    convert::export_hf_tokenizer(fs, staging,
                                 {.tokenizer = *tokenizer,
                                  .files = *files,
                                  .family = convert::hf_family_for(plan.model),
                                  .seq_len = plan.model.seq_len,
                                  .chat_template = chat});
  }
  convert::export_hf(fs, staging, {plan.model, plan.train.policy().master, read}, exported);
  fs.sync_dir(staging);
  return tokenizer != nullptr;
}

void export_hf(const HfOptions& options) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  const io::Path target = io::Path(options.to).lexically_normal();
  if (fs->exists(target)) throw ConfigError(str("--out = ", target.string(), ": exists already; choose another"));
  std::string architecture;
  bool has_tokenizer = false;
  use_saved_model(*fs, options.from, [&](const config::RunPlan& plan, const ReadValues& read) {
    architecture = convert::architecture_of(convert::hf_family_for(plan.model), plan.model);
    const io::Path staging = target.string() + io::temporary_suffix();
    fs->make_dir(staging);
    try {
      has_tokenizer = fill(*fs, staging, plan, read);
    } catch (const Error&) {
      for (const std::string& name : fs->list(staging)) fs->unlink(staging / name);
      fs->remove_dir(staging);
      throw;
    }
    fs->rename(staging, target);
    fs->sync_dir(target.has_parent_path() ? target.parent_path() : io::Path("."));
  });
  std::printf("%s: a %s %s\n", target.c_str(), architecture.c_str(),
              has_tokenizer ? "and its tokenizer (AutoTokenizer)" : "without a tokenizer");
}

void add_leaf(CLI::App& parent, const char* name, const char* help, const char* from, void (*run)(const HfOptions&)) {
  const auto options = std::make_shared<HfOptions>();
  CLI::App* const leaf = parent.add_subcommand(name, help);
  leaf->add_option("from", options->from, from)->required();
  add_output(*leaf, "--out", options->to, "Folder to write; must not hold one yet");
  leaf->callback([options, run] {
    if (options->to.empty()) throw ConfigError("--out = \"\": must name a folder");
    run(*options);
  });
}

}  // namespace

void add_hugging_face(CLI::App& checkpoint_command) {
  add_leaf(checkpoint_command, "import-hf",
           "Make a checkpoint of a Hugging Face model, to generate from or to train on (train.init)",
           "folder with config.json and *.safetensors", import_hf);
  add_leaf(checkpoint_command, "export-hf",
           "Write a checkpoint's model and tokenizer so that transformers loads them (AutoModelForCausalLM, of BERT "
           "AutoModelForPreTraining or the class of its task; AutoTokenizer)",
           "step folder, folder of steps, or OUT of a run", export_hf);
}

}  // namespace megalith::apps
