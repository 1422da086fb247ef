#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/eval/choice_data.h"
#include "megalith/eval/inference_model.h"
#include "megalith/train/engine.h"

namespace megalith::train {

/// A task of eval.tasks: multiple-choice questions that are scored at the evaluations of a run.
struct ChoiceTask {
  std::string name;  ///< of its results
  eval::ChoiceData data = {};
};

/// Reads the files of eval.tasks. Throws InputError with the problems of all of them.
std::vector<ChoiceTask> open_choice_tasks(io::Fs& fs, const config::RunPlan& plan,
                                          const tokenizer::Tokenizer& tokenizer);

/// Files and checksums of the tasks, in one text; empty if there are none.
std::string choice_tasks_text(std::span<const ChoiceTask> tasks);

/// What passages of the tasks lose, as the window is shorter than their text: one line per task that has such ones.
std::vector<std::string> choice_task_cuts(std::span<const ChoiceTask> tasks);

/// Scores tasks with the parameters of a run, on its grid: `eval --task` with the precision of the run. It holds a copy
/// of the parameters in the compute dtype, and activations of a pass, beside the memory of the engine.
class ChoiceScorer {
 public:
  /// Takes no memory. All must outlive it.
  ChoiceScorer(Engine& engine, const config::RunPlan& plan, std::span<const ChoiceTask> tasks);

  bool is_empty() const { return tasks_.empty(); }
  /// Takes its memory, if there are tasks. Throws IoError if a host has too little, ConfigError if a GPU has.
  /// Collective.
  void allocate();
  /// What allocate() takes.
  Index planned_bytes() const { return model_ ? total(model_->planned_bytes()) : 0; }
  /// Copies the parameters, and returns the scores of all tasks on rank 0, nothing on other ranks. No step may be in
  /// flight. Collective: gathers the parameters, then as InferenceModel::infer().
  std::vector<ChoiceResult> score();

 private:
  Engine& engine_;
  std::span<const ChoiceTask> tasks_;
  std::vector<eval::Passage> passages_;  ///< of all tasks
  std::optional<eval::InferenceModel> model_;
};

}  // namespace megalith::train
