#include "tests/io/temp_dir.h"
#include "tests/train/graph_ways.h"
#include "tests/train/saved_run.h"

// A checkpoint between launches, in every way to run from graphs (FG-20, T8).
namespace megalith {
namespace {

using testing::Grid;

constexpr Index kSteps = 50, kSavedAt = 23;

void train_to(Index end, const config::RunPlan& plan, const io::Path& folder, testing::SavedRun& run) {
  const auto begin = static_cast<Index>(run.losses.size());
  comm::run_ranks(plan.grid.world_size,
                  [&](comm::World& world) { testing::train_saved(world, begin, end, plan, folder, run); });
}

class GraphResume : public ::testing::TestWithParam<Grid> {};

TEST_P(GraphResume, ACheckpointBetweenLaunchesGoesOnWithTheBitsOfEagerSteps) {
  const config::RunPlan plan = testing::small_plan(GetParam(), "bf16", kSteps);
  testing::SavedRun eager;
  const TempDir eager_dir;
  train_to(kSteps, plan, eager_dir.path(), eager);
  ASSERT_EQ(eager.evaluated.size(), 5u);
  for (const testing::GraphWay& way : testing::kGraphWays) {
    SCOPED_TRACE(way.name);
    const config::RunPlan from_graphs = testing::with_graphs(plan, way, 3);
    const TempDir dir;
    testing::SavedRun joined;
    train_to(kSavedAt, from_graphs, dir.path(), joined);
    train_to(kSteps, from_graphs, dir.path(), joined);
    testing::expect_same(joined, eager);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GraphResume,
                         ::testing::Values(Grid{}, Grid{.pp = 2}, Grid{.pp = 4, .chunks = 2}, Grid{.tp = 2, .pp = 2},
                                           Grid{.tp = 2, .pp = 2, .rows = nn::Rows::shared},
                                           Grid{.pp = 2, .dp = 2, .chunks = 2},
                                           Grid{.dp = 2, .sharding = Sharding::optimizer}),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace megalith
