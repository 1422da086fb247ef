#pragma once
#include <string>

#include "megalith/train/trainer.h"

#include "apps/program/recipe_options.h"

namespace megalith::apps {

/// One training: a recipe, and where it writes.
struct TrainRequest {
  RecipeOptions recipe = {};
  std::string out = {};  ///< empty: out/RECIPE
  std::string trace = {}, router_trace = {}, gemm_table = {};
  train::Resume resume = train::Resume::no;
};

/// The folder in which a request writes.
io::Path out_of(const TrainRequest& options);

/// Trains on the ranks of the launcher, or of this process. Returns `stopped` if a signal ended it with all state
/// saved. Call catch_stop_signals() before. A process may train several times, one after another. Throws ConfigError
/// for what the command line and the recipe break, and the errors of a run.
train::Outcome run_train(const TrainRequest& request);

/// Identifies what a path of train.init or task.init names, a checkpoint or a Hugging Face folder, by its contents.
std::string init_content(io::Fs& fs, const io::Path& init);

}  // namespace megalith::apps
