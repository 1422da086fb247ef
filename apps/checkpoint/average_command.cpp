#include <charconv>
#include <cstdio>
#include <memory>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/difference.h"
#include "megalith/config/model_changes.h"
#include "megalith/io/run_lock.h"
#include "megalith/io/save_protocol.h"
#include "megalith/train/imported_model.h"
#include "megalith/train/trainer.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_tools.h"
#include "apps/checkpoint/saved_model.h"
#include "apps/program/command.h"
#include "apps/program/launch.h"
#include "apps/program/output_path.h"

namespace megalith::apps {
namespace {

struct AverageOptions {
  std::vector<std::string> from;
  std::string to;
};

using Readers = std::vector<std::unique_ptr<checkpoint::CheckpointReader>>;

/// The recipe of the mean: model, number format and tokenizer of a checkpoint, and no steps.
config::RunPlan plan_of_mean(const config::RunConfig& trained) {
  config::RunConfig c = model_of(trained);
  c.source = "the recipe of the first checkpoint";
  c.train.steps = 0;
  c.train.seed = trained.train.seed;
  c.train.precision = trained.train.precision;
  c.data.tokenizer = trained.data.tokenizer;
  c.data.vocab_dir = trained.data.vocab_dir;
  c.data.format = trained.data.format;
  c.data.chat_template = trained.data.chat_template;
  return config::resolve(c);
}

std::string text_among(const checkpoint::RunState& run, const char* name) {
  const auto found = run.texts.find(name);
  return found == run.texts.end() ? std::string() : found->second;
}

/// Tokenizer and files of a vocabulary as a checkpoint has them. The corpus stays unknown, as that of an imported
/// model.
train::DataIdentity identity_of(io::Fs& fs, checkpoint::CheckpointReader& reader) {
  train::DataIdentity identity;
  const checkpoint::Manifest& manifest = reader.manifest();
  const std::string hash = text_among(manifest.run, train::kTokenizerHash);
  std::from_chars(hash.data(), hash.data() + hash.size(), identity.tokenizer, 16);
  identity.unicode = text_among(manifest.run, train::kUnicodeVersion);
  if (!reader.verify_plain_files()) return identity;
  auto files = std::make_shared<std::vector<tokenizer::VocabularyFile>>();
  for (const checkpoint::FileRecord& file : manifest.files) {
    if (checkpoint::is_plain(file))
      files->push_back({file.name, std::string(fs.map(reader.folder() / file.name).text())});
  }
  identity.vocabulary = files;
  return identity;
}

/// Lines on what makes a checkpoint another model than the first one, or its values no numbers of the same kind.
void compare_models(const checkpoint::CheckpointReader& first, const checkpoint::CheckpointReader& other,
                    std::vector<std::string>& problems) {
  const config::RunPlan of_first = config::resolve(recipe_of(first)), of_other = config::resolve(recipe_of(other));
  const std::string name = other.folder().string() + ": ";
  const config::ModelChanges changes = config::model_changes(of_first, of_other);
  for (const std::string& line : changes.refused) problems.push_back(name + line);
  for (const std::string& line : changes.taken) log::warning(str(name, line, ", which the mean has"));
  if (of_first.train.policy().master != of_other.train.policy().master) {
    problems.push_back(
        str(name, "train.precision = ", of_other.train.precision, ": the first one has ", of_first.train.precision));
  }
  if (text_among(first.manifest().run, train::kTokenizerHash) !=
      text_among(other.manifest().run, train::kTokenizerHash))
    problems.push_back(name + "has another vocabulary than the first one");
}

Readers open_all(io::Fs& fs, const std::vector<std::string>& given) {
  Readers readers;
  std::vector<std::string> twice, different;
  for (const std::string& path : given) {
    const io::Path folder = checkpoint_folder(fs, path, checkpoint::OnCorrupt::previous);
    for (const auto& other : readers)
      if (std::filesystem::equivalent(other->folder(), folder)) twice.push_back(folder.string());
    readers.push_back(std::make_unique<checkpoint::CheckpointReader>(fs, folder));
    compare_models(*readers.front(), *readers.back(), different);
  }
  Problems problems;
  for (const std::string& folder : twice)
    problems.add_line(folder + ": is named twice; name a step folder, as a folder of them means the newest");
  problems.throw_if_any("checkpoint average");
  if (different.empty()) return readers;
  std::string text = str("[checkpoint average] the mean of different models has no meaning; the first one is ",
                         readers.front()->folder().string(), ':');
  for (const std::string& line : different) text += "\n  " + line;
  throw CheckpointError(CheckpointError::Kind::refused, text);
}

void average(const AverageOptions& options) {
  if (options.to.empty()) throw ConfigError("--out = \"\": must name a folder");
  if (options.from.size() < 2)
    throw ConfigError(str("A B... = ", options.from.front(), ": a mean needs two checkpoints or more"));
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  const io::Path out = options.to, folder = out / "checkpoints";
  if (!io::published(*fs, folder).empty())
    throw ConfigError(str("--out = ", out.string(), ": holds checkpoints already; choose another"));
  const Readers readers = open_all(*fs, options.from);
  const config::RunPlan plan = plan_of_mean(recipe_of(*readers.front()));
  const train::DataIdentity identity = identity_of(*fs, *readers.front());
  const io::RunLock lock = io::RunLock::take(out);
  const checkpoint::Digest128 digest = train::save_imported_model(
      plan, identity, *fs, folder,
      [&](const TensorSlice& param, const Tensor& values) { checkpoint::read_mean(readers, param, values); },
      train::RuleValues::read);
  std::printf("%s: the mean of %zu checkpoints, state digest %s\n", (folder / io::StepFolder{0}.name()).c_str(),
              readers.size(), digest.hex().c_str());
}

}  // namespace

void add_checkpoint_average(CLI::App& checkpoint_command) {
  const auto options = std::make_shared<AverageOptions>();
  CLI::App* const leaf = checkpoint_command.add_subcommand(
      "average",
      "Make a checkpoint of the mean of the values of several, to generate from or to train on (train.init)");
  leaf->add_option("checkpoints", options->from,
                   "Two or more: step_* folders, folders of them or OUTs of runs, which mean the newest")
      ->required();
  add_output(*leaf, "--out", options->to, "Folder to write; must not hold checkpoints yet");
  leaf->callback([options] { average(*options); });
}

}  // namespace megalith::apps
