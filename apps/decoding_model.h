#pragma once
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "megalith/checkpoint/choose.h"
#include "megalith/config/run_plan.h"
#include "megalith/eval/decoder.h"

#include "apps/launch.h"

namespace megalith::apps {

/// What a command takes that continues texts on any grid: --checkpoint DIR [--device cpu|cuda] [--precision NAME]
/// [--ranks N] [--set parallel.tp=N] [--set parallel.pp=N].
struct DecodingOptions {
  std::string checkpoint, device, precision;  ///< the last two are empty unless set
  std::vector<std::string> settings;
  int ranks = 0;  ///< 0: tp * pp, or as many as the launcher started

  /// Adds them to a command. They must outlive the parsing.
  void add_to(CLI::App& command);
};

/// The model of a checkpoint (as checkpoint_folder() finds it), and how ranks compute it: on the grid, the device and
/// in the precision that were asked for, whatever it was trained on. Made in every process before the ranks.
class DecodingModel {
 public:
  /// Throws InputError, CheckpointError, and ConfigError for settings that do not fit the model or the launcher.
  DecodingModel(io::Fs& fs, const DecodingOptions& options, const Launcher& launcher);

  /// Model, grid, device and precision; data.vocab_dir is where the tokenizer's files are now.
  const config::RunPlan& plan() const { return plan_; }
  JobShape job() const;
  /// On every rank: fills the parameters. Where the newest checkpoint of several is damaged on any rank, all take the
  /// one before it, with a warning. Throws InputError that names the damage.
  void load(comm::World& world, eval::Decoder& decoder) const;

 private:
  io::Path given_, folder_;
  std::vector<checkpoint::Rejected> unusable_;
  config::RunPlan plan_;
  DType stored_ = DType::f32;  ///< of the checkpoint's parameters
};

}  // namespace megalith::apps
