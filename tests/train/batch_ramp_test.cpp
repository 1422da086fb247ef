#include <gtest/gtest.h>

#include "tests/io/temp_dir.h"
#include "tests/train/agreeing_runs.h"
#include "tests/train/resumed_run.h"

// A batch that grows: four steps of 2 samples, two of 4, two of 6, then 8.
namespace megalith {
namespace {

using support::Grid;
using support::RunRecord;

constexpr Index kRampSteps = 10;

config::RunPlan ramp_plan(const Grid& grid, const char* family = "gpt2") {
  config::RunConfig c = support::small_config(grid, "fp64", kRampSteps);
  c.train.global_batch.reset();
  c.train.batch_ramp = "2:8:24";
  c.model.family = family;
  if (std::string_view(family) == "bert") c.bert.mask_fraction = 0.5;
  return config::resolve(c);
}

/// What a run leaves behind.
struct RampRun : RunRecord {
  explicit RampRun(const config::RunPlan& plan) {
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) { support::train_rank(world, plan, *this); });
  }
};

TEST(BatchRampRun, StepsHaveTheSamplesOfTheirBatch) {
  const RampRun ramp(ramp_plan({}));
  config::RunConfig c = support::small_config({}, "fp64", 4);
  c.optimizer.decay_steps = kRampSteps;
  c.train.global_batch = 2;
  const RampRun small(config::resolve(c));
  const std::vector<double> first(ramp.losses.begin(), ramp.losses.begin() + 4);
  EXPECT_LT(support::relative_error(first, small.losses), 1e-13);
  const std::vector<double> norms(ramp.norms.begin(), ramp.norms.begin() + 4);
  EXPECT_LT(support::relative_error(norms, small.norms), 1e-13);
}

TEST(BatchRampRun, EveryGridTrainsTheSameModel) {
  for (const char* family : {"gpt2", "bert"}) {
    const RampRun want(ramp_plan({}, family));
    for (const Grid& grid : {Grid{.dp = 2}, Grid{.pp = 2}, Grid{.pp = 4}, Grid{.tp = 2, .pp = 2, .dp = 2},
                             Grid{.dp = 2, .sharding = Sharding::optimizer}}) {
      SCOPED_TRACE(family + (" " + grid.name()));
      support::expect_fp64_agrees(RampRun(ramp_plan(grid, family)), want);
    }
  }
}

TEST(BatchRampRun, AResumedRunGoesOnWithTheBatchesOfAnUninterruptedOne) {
  for (const char* family : {"gpt2", "bert"}) {
    const RampRun whole(ramp_plan({}, family));
    for (const Index saved_at : {Index{3}, Index{4}, Index{7}}) {
      SCOPED_TRACE(saved_at);
      const TempDir dir;
      support::train_and_save(ramp_plan({.pp = 2}, family), dir.path(), 0, saved_at);
      const support::Trained resumed =
          support::train_and_save(ramp_plan({.dp = 2}, family), dir.path(), saved_at, kRampSteps);
      EXPECT_LT(support::relative_error(resumed.losses, {whole.losses.begin() + saved_at, whole.losses.end()}), 1e-12);
    }
  }
}

}  // namespace
}  // namespace megalith
