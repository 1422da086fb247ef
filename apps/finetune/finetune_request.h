#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"
#include "megalith/tasks/task.h"

#include "apps/program/recipe_options.h"

namespace megalith::apps {

/// The command line of `finetune`.
struct FinetuneOptions {
  RecipeOptions recipe;
  std::string out;                       ///< empty: out/RECIPE
  std::optional<std::string> lr, batch;  ///< "1e-5,2e-5"; nothing: the recipe's
  Index seeds = 5;
  bool ensemble = false;
};

/// A run: what differs between those of one `finetune`.
struct TunedPoint {
  double lr = 0;
  Index batch = 0;
  Index seed = 0;

  /// "lr_2e-05_batch_32_seed_1234", the name of its folder.
  std::string name() const;
  /// The keys for --set: optimizer.lr, train.global_batch, train.seed, and no data.test.
  std::vector<std::string> settings() const;
};

/// What `finetune` does.
struct FinetuneJob {
  config::RunPlan plan;           ///< of the first point; all others have the same but for the keys of a point
  std::vector<std::string> grid;  ///< keys for --set of an inference on the grid of training
  tasks::Task task = tasks::Task::mnli;
  io::Path out;
  std::vector<TunedPoint> search;  ///< with the first seed: each rate with each batch, by rate, then batch
  Index seeds = 5;
  bool ensemble = false;

  /// The points of all seeds, from the first one on, with the rate and batch of `best`.
  std::vector<TunedPoint> seeds_of(const TunedPoint& best) const;
  /// Runs in all.
  Index runs() const { return static_cast<Index>(search.size()) + seeds - 1; }
};

/// Reads the recipe and the model of task.init, and resolves the recipe with every rate and batch. Throws ConfigError
/// with all that command line and recipe break, and the errors of with_task_model().
FinetuneJob plan_finetune(io::Fs& fs, const FinetuneOptions& options);

}  // namespace megalith::apps
