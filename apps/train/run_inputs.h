#pragma once
#include <memory>

#include "megalith/train/run_data.h"
#include "megalith/train/trainer.h"

namespace megalith::apps {

/// What a run reads, in addition to its recipe.
struct RunInputs {
  std::shared_ptr<const train::RunData> data;
  train::DataIdentity identity;
  std::shared_ptr<const std::vector<train::ChoiceTask>> choice_tasks = {};  ///< of eval.tasks
};
/// Opens tokenizer, data and tasks of a plan, and completes the plan by what they have: the chat template of the
/// tokenizer's folder, the steps of a fine-tuning run. Throws ConfigError, InputError, IoError.
RunInputs open_run_inputs(io::Fs& fs, config::RunPlan& plan);

/// Prints what was found about the data.
void print_notes(const config::RunPlan& plan, const data::DataNotes& notes);

/// The checkpoint of train.init or task.init, or task.init's Hugging Face folder, whose tensors are compared with its
/// config.json. Nothing if it is not set, or if the run goes on from a checkpoint of its own, in `out`.
io::Path init_of(io::Fs& fs, const config::RunPlan& plan, const io::Path& out, train::Resume resume);

}  // namespace megalith::apps
