#pragma once
#include <string>
#include <utility>
#include <vector>

#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"
#include "megalith/pipeline/schedule.h"

namespace megalith::apps {

/// What the recipe of a run tells about it. JSON texts are empty where the recipe cannot be used.
struct RunFacts {
  std::string title;        ///< "4 layers x 128, 3.4 million parameters; grid tp 2 pp 2 dp 1; fp32"
  Index planned_steps = 0;  ///< train.steps; 0: not known
  std::vector<std::pair<std::string, std::string>> recipe;  ///< every key that is set, with its value as in a recipe
  std::string memory;  ///< bytes by owner of the ranks, as `megalith plan` plans them; ranks that are alike share a row
  std::string grid;    ///< sizes of both grids, and the coordinates of the ranks (512 at most)
  std::string schedule;  ///< actions of the pipeline stages in time; of many microbatches the first ones
  std::string problem;   ///< why OUT/recipe.toml cannot be used; empty: it can
};

/// From OUT/recipe.toml, which holds the resolved recipe. Throws nothing for a file that is missing or broken.
RunFacts run_facts(io::Fs& fs, const io::Path& out);

std::string grid_json(const config::RunPlan& plan);
std::string schedule_json(const pipeline::ScheduleShape& whole);

}  // namespace megalith::apps
