#pragma once
#include "megalith/train/gather.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/io/temp_dir.h"
#include "tests/train/graph_ways.h"
#include "tests/train/saved_run.h"

// Runs on ranks that each have a GPU, and what they leave behind.

namespace megalith::support {

inline config::RunPlan with_graphs(const config::RunPlan& plan, const GraphWay& way) {
  return with_graphs(plan, way, 3);
}

/// Steps from `begin`, where `folder` stands, to `end`, added to `run`.
inline void train_to(Index begin, Index end, const config::RunPlan& plan, const io::Path& folder, SavedRun& run) {
  comm::run_gpu_ranks(plan.grid.world_size, [&](comm::World& world) {
    const io::Path shared = train::share_text(world, folder.string());
    train_saved(world, begin, end, plan, shared, run);
  });
}

inline SavedRun trained(const config::RunPlan& plan) {
  const TempDir dir;
  SavedRun outcome;
  train_to(0, plan.train.steps, plan, dir.path(), outcome);
  return outcome;
}

}  // namespace megalith::support
