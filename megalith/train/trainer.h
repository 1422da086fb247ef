#pragma once
#include <functional>
#include <optional>
#include <span>

#include "megalith/base/error.h"
#include "megalith/train/choice_tasks.h"
#include "megalith/train/progress_line.h"
#include "megalith/train/run_data.h"
#include "megalith/train/saver.h"

namespace megalith::train {

enum class Resume : std::uint8_t { no, required, automatic };

/// The inputs of a run in addition to its plan. Shared by rank threads; read only.
struct TrainInputs {
  const config::RunPlan& plan;
  const RunData& data;
  DataIdentity identity;  ///< of tokenizer and data
  io::Path out;
  Resume resume = Resume::no;
  io::Path init = {};  ///< the step folder of train.init, if the run may begin from it; the first process's
  ProgressLine::Screen screen = {};  ///< on which rank 0 reports
  /// Whether this process was asked to stop (a signal). Called once per step on every rank. If it was not asked, the
  /// argument is the step after which a later request ends the run.
  std::function<bool(Index)> stop_asked = [](Index) { return false; };
  /// What asked this process to stop ("Terminated"); empty: nothing, another process was asked.
  std::function<std::string()> stop_reason = [] { return std::string(); };
  /// Throws IoError if a folder of the run no longer belongs to this job. Called on rank 0 before every save.
  std::function<void()> require_folders = [] {};
  std::optional<ops::KnownGemms> gemm_table = {};  ///< of a run whose bits this one must have
  io::Path cache = {};                             ///< folder of data that jobs can compute again; empty: none
  io::Path router_trace = {};                      ///< a file for the decisions of routers; empty: none
  /// Called on a rank that fails, with the step at which it stood; not for errors that another rank's failure causes.
  std::function<void(Index, const Error&)> on_fault = [](Index, const Error&) {};
  std::span<const ChoiceTask> choice_tasks = {};  ///< scored at evaluations
  io::Path trace = {};                            ///< a file for the times of all ops of steps 3 to 5; empty: none
};

enum class Outcome : std::uint8_t { finished, stopped };  ///< stopped: on request, state saved

/// Trains according to the plan, as one rank of `world`. Collective. Only rank 0 prints and writes metrics. A save that
/// fails during the run causes a warning and is tried again at the next interval. The last one must succeed.
Outcome train(comm::World& world, const TrainInputs& inputs, io::Fs& fs);

/// Throws ConfigError unless the model has an id for every token of the vocabulary.
void check_vocabulary(const config::RunPlan& plan, const tokenizer::Tokenizer& tokenizer);

/// The error of a run that must resume and has no checkpoint.
CheckpointError nothing_to_resume(const io::Path& folder);

/// The folder of a run's checkpoints.
io::Path checkpoint_folder(const config::RunPlan& plan, const io::Path& out);

}  // namespace megalith::train
