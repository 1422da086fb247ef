#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "megalith/checkpoint/choose.h"
#include "megalith/config/run_plan.h"
#include "megalith/convert/hf_model.h"
#include "megalith/eval/inference_model.h"
#include "megalith/io/fs.h"

#include "apps/program/launch.h"

namespace megalith::apps {

/// The grids of a command. Texts are continued on stages of one chunk, with the layers spread as evenly as possible.
enum class GridKeys : std::uint8_t { all, even_stages };

/// Options of every command that runs a saved model on a grid: [--ranks N] [--set section.key=value] [--device
/// cpu|cuda] [--precision fp64|fp32|bf16].
struct InferenceOptions {
  std::string checkpoint;  ///< step folder, folder of steps, OUT of a run, or a Hugging Face folder
  std::string device, precision;
  std::vector<std::string> settings;
  int ranks = 0;    ///< 0: from the launcher or the settings
  Index batch = 0;  ///< passages per pass, or texts at once; 0: by the device
  GridKeys keys = GridKeys::all;
  std::string task = {};  ///< that the model must be fine-tuned on; empty: it must not be fine-tuned

  /// Adds all but the checkpoint and the batch to a command. They must outlive the parsing.
  void add_to(CLI::App& command);
};

/// The checkpoint, as a positional argument or after --checkpoint. It is required.
CLI::Option* add_model(CLI::App& command, InferenceOptions& options);

/// --batch N, for commands that score passages.
void add_batch(CLI::App& command, Index& batch);

/// Calls both. If one throws a ConfigError, throws one with the texts of both; else the error of the one that throws.
void check_both(const std::function<void()>& a, const std::function<void()>& b);

/// Throws ConfigError for a model that cannot continue a text.
void refuse_masked_model(const std::string& checkpoint, const model::ModelConfig& model);

/// A saved model, and how it runs here. Its grid does not depend on that of training.
class InferenceJob {
 public:
  /// Checks the other options of a command. Throws ConfigError for those that the model does not allow.
  using Check = std::function<void(const InferenceJob&)>;
  /// Reads no values of parameters. Throws ConfigError for settings that do not concern the grid, and for all rules of
  /// the grid and of `check` together. Throws InputError and CheckpointError for a folder without a model. While
  /// `check` runs, plan() may be that of one rank.
  InferenceJob(std::shared_ptr<io::Fs> fs, const InferenceOptions& options, const Launcher& launcher,
               const Check& check = {});

  const config::RunPlan& plan() const { return plan_; }
  /// "fp32", "bf16", ...: the precision of parameters and activations.
  const std::string& precision() const { return plan_.train.precision; }
  /// The given folder, or the step folder chosen in it.
  const io::Path& folder() const { return folder_; }
  /// The number of passages in a microbatch, or of texts at once.
  Index batch() const { return batch_; }
  /// The tokenizer of the model's training. `vocab_dir` is another folder of its files, unless it is empty. Throws
  /// InputError for files of another vocabulary.
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer(const std::string& vocab_dir) const;
  /// The folder of those files; "" if the tokenizer has none, or uses those of the program.
  const std::string& vocab_dir() const { return vocab_dir_; }
  /// Facts that must be equal in all processes.
  train::Facts facts() const;

  /// `window`: the longest pass. At most plan().model.seq_len, unless positions are rotary.
  eval::InferenceConfig config(std::vector<eval::AskedResult> results, Index window) const;
  /// Allocates the memory of an eval::InferenceModel or eval::Decoder and reads the values. If the newest of several
  /// checkpoints is damaged, it reads the previous one, with a warning. Returns the digest of the values: from the
  /// manifest, or of the files of a Hugging Face folder. It is the same on all ranks. Throws IoError, ConfigError
  /// for too little memory, and NonFiniteError, with the first parameter, for a value that is not finite. Collective.
  template <class Model>
  std::string load(comm::World& world, Model& model) const {
    require_memory(world, model.planned_bytes());
    model.allocate();
    return fill(world, [&](DType stored, const ReadValues& read) { model.fill_params(stored, read); });
  }

 private:
  using Fill = std::function<void(DType stored, const ReadValues& read)>;
  void resolve(const config::RunConfig& c, int ranks, const Check& check);
  /// Throws ConfigError if the model is fine-tuned on another task than `wanted`. Both may be empty: on none.
  void require_task(const std::string& tuned, const std::string& wanted) const;
  void describe_checkpoint(config::RunConfig& c);
  void describe_hf(config::RunConfig& c);
  std::string fill(comm::World& world, const Fill& fill) const {
    return hf_ ? fill_from_hf(world, fill) : fill_from_checkpoint(world, fill);
  }
  std::string fill_from_checkpoint(comm::World& world, const Fill& fill) const;
  std::string fill_from_hf(comm::World& world, const Fill& fill) const;
  void require_memory(comm::World& world, const BytesByOwner& bytes) const;

  std::shared_ptr<io::Fs> fs_;
  io::Path given_, folder_;
  std::vector<checkpoint::Rejected> unusable_;  // skipped in favour of folder_
  std::optional<convert::HfModel> hf_;
  DType saved_dtype_ = DType::f32;
  Device usual_device_ = Device::cpu;  // that of training; a GPU for imported models
  std::string vocab_dir_;
  config::RunPlan plan_;
  Index batch_ = 1;
};

}  // namespace megalith::apps
