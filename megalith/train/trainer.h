#pragma once
#include <functional>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/data/data_config.h"
#include "megalith/train/progress_line.h"
#include "megalith/train/saver.h"

namespace megalith::train {

enum class Resume : std::uint8_t { no, required, automatic };

/// What a run needs beside its plan. Shared by rank threads; read only.
struct TrainInputs {
  const config::RunPlan& plan;
  const data::DataSets& data;
  DataIdentity identity;  ///< of tokenizer and data
  io::Path out;
  Resume resume = Resume::no;
  io::Path init = {};  ///< the step folder that train.init stands for, where the run may begin; the first process's
  ProgressLine::Screen screen = {};  ///< that rank 0 reports on
  /// Whether this process was asked to stop (a signal). Read once in every step on every rank. Where it was not, the
  /// argument is the step that a request from now on ends the run with.
  std::function<bool(Index)> stop_asked = [](Index) { return false; };
  /// Throws IoError where a folder of the run is no longer this job's. Called on rank 0 before every save.
  std::function<void()> require_folders = [] {};
  std::optional<ops::KnownGemms> gemm_table = {};  ///< of a run whose bits this one is to have
  io::Path cache = {};                             ///< folder of what jobs can find out again; empty: none
  io::Path trace = {};                             ///< a file for the times of all ops of steps 3 to 5; empty: none
};

enum class Outcome : std::uint8_t { finished, stopped };  ///< stopped: on request, state saved

/// Trains as the plan says, as one rank of `world`. Collective. Rank 0 alone prints and writes metrics. A save that
/// fails on the way is a warning and is tried again at the next interval; the last one must succeed.
Outcome train(comm::World& world, const TrainInputs& inputs, io::Fs& fs);

/// Throws ConfigError unless the model has an id for every token of the vocabulary.
void check_vocabulary(const config::RunPlan& plan, const data::Tokenizer& tokenizer);

/// The error of a run that should go on and has no checkpoint.
CheckpointError nothing_to_resume(const io::Path& folder);

/// Where checkpoints of a run lie.
io::Path checkpoint_folder(const config::RunPlan& plan, const io::Path& out);

}  // namespace megalith::train
