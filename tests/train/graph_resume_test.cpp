#include "tests/io/temp_dir.h"
#include "tests/train/saved_run.h"

// A checkpoint between launches, in every way to run from graphs (FG-20, T8).
namespace megalith {
namespace {

using capture::GraphMode;
using capture::GraphsPer;
using testing::Grid;

constexpr Index kSteps = 50, kSavedAt = 23;

void train_to(Index end, const config::RunPlan& plan, const io::Path& folder, testing::SavedRun& run) {
  const auto begin = static_cast<Index>(run.losses.size());
  comm::run_ranks(plan.grid.world_size,
                  [&](comm::World& world) { testing::train_saved(world, begin, end, plan, folder, run); });
}

class GraphResume : public ::testing::TestWithParam<Grid> {};

TEST_P(GraphResume, ACheckpointBetweenLaunchesGoesOnWithTheBitsOfEagerSteps) {
  config::RunPlan plan = testing::small_plan(GetParam(), "bf16", kSteps);
  testing::SavedRun eager;
  const TempDir eager_dir;
  train_to(kSteps, plan, eager_dir.path(), eager);
  ASSERT_EQ(eager.evaluated.size(), 5u);
  plan.graphs.warmup_steps = 3;
  const auto expect_joined = [&](const char* way) {
    SCOPED_TRACE(way);
    const TempDir dir;
    testing::SavedRun joined;
    train_to(kSavedAt, plan, dir.path(), joined);
    train_to(kSteps, plan, dir.path(), joined);
    testing::expect_same(joined, eager);
  };
  plan.graphs.mode = GraphMode::iteration;
  expect_joined("iteration");
  plan.graphs.optimizer = true;
  expect_joined("iteration with the optimizer");
  plan.graphs.optimizer = false;
  plan.graphs.mode = GraphMode::layers;
  expect_joined("layers");
  plan.graphs.per = GraphsPer::slot;
  expect_joined("layers per slot");
}

INSTANTIATE_TEST_SUITE_P(All, GraphResume,
                         ::testing::Values(Grid{}, Grid{.pp = 2}, Grid{.pp = 4, .chunks = 2}, Grid{.tp = 2, .pp = 2},
                                           Grid{.tp = 2, .pp = 2, .rows = nn::Rows::shared},
                                           Grid{.pp = 2, .dp = 2, .chunks = 2},
                                           Grid{.dp = 2, .sharding = Sharding::optimizer}),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace megalith
