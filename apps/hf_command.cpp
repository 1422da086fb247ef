#include <cstdio>
#include <memory>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/convert/hf_model.h"
#include "megalith/convert/hf_tokenizer.h"
#include "megalith/data/tokenizer.h"
#include "megalith/io/run_lock.h"
#include "megalith/io/save_protocol.h"
#include "megalith/train/trainer.h"

#include "apps/command.h"
#include "apps/launch.h"
#include "apps/saved_model.h"
#include "apps/vocabulary.h"

namespace megalith::apps {
namespace {

struct HfOptions {
  std::string from, to;
};

/// The recipe of a model that was trained elsewhere: no steps yet, and data to be named by whoever goes on.
config::RunPlan imported_plan(const model::ModelConfig& m, const io::Path& folder) {
  config::RunConfig c;
  c.source = folder.string();
  c.model.num_layers = m.num_layers;
  c.model.hidden_size = m.hidden_size;
  c.model.num_heads = m.num_heads;
  c.model.ffn_hidden_size = m.ffn_hidden_size;
  c.model.seq_len = m.seq_len;
  c.model.vocab_size = m.vocab_size;
  c.model.dropout = m.dropout;
  c.model.attention_dropout = m.attention_dropout;
  c.model.embedding_dropout = m.embedding_dropout;
  c.train.steps = 0;
  c.data.tokenizer = m.vocab_size == 256 ? "byte" : "gpt2";
  c.data.vocab_dir = std::filesystem::absolute(folder).string();
  c.data.train = std::vector<std::string>{"unknown"};
  return config::resolve(c);
}

void import_hf(const HfOptions& options) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  const io::Path out = options.to;
  const convert::HfModel hf = convert::read_hf_config(*fs, options.from);
  const config::RunPlan plan = imported_plan(hf.config, options.from);
  train::DataIdentity identity;  // of the data nothing is known
  if (plan.data.tokenizer == "byte" || data::has_vocabulary(*fs, options.from)) {
    const auto tokenizer = data::make_tokenizer(plan.data.tokenizer, plan.data.vocab_dir, *fs);
    identity = {.tokenizer = tokenizer->content_hash(),
                .vocabulary = data::read_vocabulary_files(*fs, plan.data.tokenizer, plan.data.vocab_dir),
                .unicode = tokenizer->unicode_version()};
  } else {
    log::warning(str(options.from,
                     " holds no tokenizer (vocab.json and merges.txt, or tokenizer.json): give --vocab-dir "
                     "to generate"));
  }
  const io::Path folder = train::checkpoint_folder(plan, out);
  if (!io::published(*fs, folder).empty())
    throw ConfigError(str("--out = ", out.string(), ": holds checkpoints already; choose another"));
  const io::RunLock lock = io::RunLock::take(out);
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate(train::InitialValues::written_later);
    convert::import_hf(*fs, options.from, hf, engine.stage().params());
    train::Saver saver(engine, plan, identity, *fs, folder);
    const checkpoint::Digest128 digest = saver.save({});
    std::printf("%s: %s, state digest %s\n", (folder / io::StepFolder{0}.name()).c_str(),
                model::parameters_text(plan.model).c_str(), digest.hex().c_str());
  });
  io::publish_file(*fs, out / "recipe.toml", config::to_toml(plan.as_config()));
}

/// Everything of the export, into a folder that nobody looks at yet.
void fill(io::Fs& fs, const io::Path& staging, eval::WholeModel& model, const config::RunPlan& plan) {
  auto end_of_document = static_cast<std::int32_t>(plan.model.vocab_size) - 1;
  const io::Path vocabulary = vocabulary_folder(fs, plan.data.tokenizer, plan.data.vocab_dir);
  if (plan.data.tokenizer == "byte" || data::has_vocabulary(fs, vocabulary)) {
    const auto tokenizer = data::make_tokenizer(plan.data.tokenizer, vocabulary, fs);
    end_of_document = tokenizer->end_of_document();
    convert::export_hf_tokenizer(fs, staging, *tokenizer,
                                 *data::read_vocabulary_files(fs, plan.data.tokenizer, vocabulary), plan.model.seq_len);
  } else {
    log::warning(str("data.vocab_dir = ", plan.data.vocab_dir, " holds no vocabulary: no tokenizer was exported"));
  }
  convert::export_hf(fs, staging, model.config(), model.params(), {.end_of_document = end_of_document});
  fs.sync_dir(staging);
}

void export_hf(const HfOptions& options) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  const io::Path target = io::Path(options.to).lexically_normal();
  if (fs->exists(target)) throw ConfigError(str("--out = ", target.string(), ": exists already; choose another"));
  use_saved_model(*fs, options.from, Device::cpu, [&](eval::WholeModel& model, const config::RunPlan& plan) {
    const io::Path staging = target.string() + io::temporary_suffix();
    fs->make_dir(staging);
    try {
      fill(*fs, staging, model, plan);
    } catch (const Error&) {
      for (const std::string& name : fs->list(staging)) fs->unlink(staging / name);
      fs->remove_dir(staging);
      throw;
    }
    fs->rename(staging, target);
    fs->sync_dir(target.has_parent_path() ? target.parent_path() : io::Path("."));
  });
  std::printf("%s: a GPT2LMHeadModel and its tokenizer (AutoTokenizer)\n", target.c_str());
}

void add_leaf(CLI::App& parent, const char* name, const char* help, const char* from, void (*run)(const HfOptions&)) {
  const auto options = std::make_shared<HfOptions>();
  CLI::App* const leaf = parent.add_subcommand(name, help);
  leaf->add_option("from", options->from, from)->required();
  leaf->add_option("--out", options->to, "Folder to write; must not hold one yet")->required();
  leaf->callback([options, run] {
    if (options->to.empty()) throw ConfigError("--out = \"\": must name a folder");
    run(*options);
  });
}

}  // namespace

void add_hugging_face(CLI::App& checkpoint_command) {
  add_leaf(checkpoint_command, "import-hf",
           "Make a checkpoint of a Hugging Face GPT-2, to generate from or to train on (train.init)",
           "folder with config.json and model.safetensors", import_hf);
  add_leaf(checkpoint_command, "export-hf",
           "Write a checkpoint's model and tokenizer so that GPT2LMHeadModel and AutoTokenizer load them",
           "step folder, folder of steps, or OUT of a run", export_hf);
}

}  // namespace megalith::apps
