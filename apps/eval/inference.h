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

/// The grids that a command computes on: texts are continued on stages of one chunk, which share out the layers as
/// evenly as it goes.
enum class GridKeys : std::uint8_t { all, even_stages };

/// What every command that asks a model on a grid takes beside the model: [--ranks N] [--set section.key=value]
/// [--device cpu|cuda] [--precision fp64|fp32|bf16].
struct InferenceOptions {
  std::string checkpoint;  ///< step folder, folder of steps, OUT of a run, or a Hugging Face folder
  std::string device, precision;
  std::vector<std::string> settings;
  int ranks = 0;    ///< 0: the launcher's, or as the settings say
  Index batch = 0;  ///< passages of a pass, or texts that go on at once; 0: by the device
  GridKeys keys = GridKeys::all;

  /// Adds them to a command, but for the checkpoint and the batch. They must outlive the parsing.
  void add_to(CLI::App& command);
};

/// The checkpoint, as a word of its own or behind --checkpoint.
void add_model(CLI::App& command, InferenceOptions& options);

/// --batch N of commands that score passages.
void add_batch(CLI::App& command, Index& batch);

/// Calls both. Throws a ConfigError with what both throw, where one is a ConfigError; or that of the one that throws.
void check_both(const std::function<void()>& a, const std::function<void()>& b);

/// A model that was saved, and how it runs here. The grid is new: nothing of that of training is left.
class InferenceJob {
 public:
  /// The other options of a command, which throws ConfigError for what the model does not allow.
  using Check = std::function<void(const InferenceJob&)>;
  /// Reads descriptions only. Throws ConfigError for settings that do not concern the grid, and for all rules of the
  /// grid and of `check` at once; InputError and CheckpointError for a folder that holds no model. While `check` runs,
  /// plan() may be that of one rank.
  InferenceJob(std::shared_ptr<io::Fs> fs, const InferenceOptions& options, const Launcher& launcher,
               const Check& check = {});

  const config::RunPlan& plan() const { return plan_; }
  /// "fp32", "bf16", ...: of parameters and activations.
  const std::string& precision() const { return plan_.train.precision; }
  /// The given folder, or the step folder that was chosen in it.
  const io::Path& folder() const { return folder_; }
  /// The number of passages of a microbatch, or of texts that go on at once.
  Index batch() const { return batch_; }
  /// The tokenizer that the model was trained with; `vocab_dir` names another place of its files, unless it is empty.
  /// Throws InputError for files of another vocabulary.
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer(const std::string& vocab_dir) const;
  /// Where those files are; "" where the tokenizer has none, or has those that come with the program.
  const std::string& vocab_dir() const { return vocab_dir_; }
  /// The facts that all processes must have in common.
  train::Facts facts() const;

  /// `window`: the longest pass, at most plan().model.seq_len unless positions are rotations.
  eval::InferenceConfig config(eval::BestIds best_ids, Index window) const;
  /// Takes the memory of an eval::InferenceModel or eval::Decoder and reads the values. Where the newest of several
  /// checkpoints is damaged, the one before it is used, with a warning. Returns the digest of what was read: the
  /// manifest's, or that of a Hugging Face folder's files. The same on all ranks. Throws IoError and ConfigError for
  /// too little memory. Collective.
  template <class Model>
  std::string load(comm::World& world, Model& model) const {
    require_memory(world, model.planned_bytes());
    model.allocate();
    return fill(world, [&](DType stored, const ReadValues& read) { model.fill_params(stored, read); });
  }

 private:
  using Fill = std::function<void(DType stored, const ReadValues& read)>;
  void resolve(const config::RunConfig& c, int ranks, const Check& check);
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
  std::vector<checkpoint::Rejected> unusable_;  // that folder_ stands in for
  std::optional<convert::HfModel> hf_;
  DType saved_dtype_ = DType::f32;
  Device usual_device_ = Device::cpu;  // of training; a GPU for models from elsewhere
  std::string vocab_dir_;
  config::RunPlan plan_;
  Index batch_ = 1;
};

}  // namespace megalith::apps
