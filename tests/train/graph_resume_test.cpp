#include "tests/io/temp_dir.h"
#include "tests/train/graph_ways.h"
#include "tests/train/saved_run.h"

// A checkpoint between launches, in every way to run from graphs.
namespace megalith {
namespace {

using support::Grid;

constexpr Index kResumedSteps = 50, kSavedAt = 23;

class GraphResume : public ::testing::TestWithParam<Grid> {};

TEST_P(GraphResume, ACheckpointBetweenLaunchesGoesOnWithTheBitsOfEagerSteps) {
  const config::RunPlan plan = support::small_plan(GetParam(), "bf16", kResumedSteps);
  const support::SavedRun eager = support::trained_in_parts(plan, {kResumedSteps});
  ASSERT_EQ(eager.evaluated.size(), 5u);
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    const config::RunPlan from_graphs = support::with_graphs(plan, way, 3);
    support::expect_same(support::trained_in_parts(from_graphs, {kSavedAt, kResumedSteps}), eager);
  }
}

TEST(GraphsOfPartsOfLayers, GoOnFromACheckpointWithTheBitsOfEagerSteps) {
  using capture::Scope;
  for (const Grid& grid :
       {Grid{.pp = 4, .chunks = 2}, Grid{.tp = 2, .pp = 2}, Grid{.dp = 2, .sharding = Sharding::optimizer}}) {
    const config::RunPlan plan = support::small_plan(grid, "bf16", kResumedSteps);
    const support::SavedRun eager = support::trained_in_parts(plan, {kResumedSteps});
    for (const support::GraphWay& way : {support::kLayers, support::kLayersPerSlot}) {
      for (const Scope scope : {Scope::attn, Scope::mlp}) {
        SCOPED_TRACE(grid.name() + " " + way.name + " " + std::string(name(scope)));
        config::RunPlan from_graphs = support::with_graphs(plan, way, 3);
        from_graphs.graphs.scopes = capture::ScopeSet{scope};
        support::expect_same(support::trained_in_parts(from_graphs, {kSavedAt, kResumedSteps}), eager);
      }
    }
  }
}

/// One rank's steps to `end`; rank 0's losses at their place in `losses`.
void train_on(train::Engine& engine, train::Progress& progress, Index end, Index global_batch,
              std::vector<double>& losses) {
  const support::HashedBatches source(engine.stage().config().model.vocab_size);
  for (; progress.step < end; progress = {progress.step + 1, progress.samples + global_batch})
    losses[static_cast<std::size_t>(progress.step)] = engine.step(source, progress, train::Stop::no).loss;
}

// The graphs that an engine has are launched on after it has taken over another state, as they hold none of it.
TEST_P(GraphResume, ACheckpointIsLoadedBesideGraphsThatAreThere) {
  const config::RunPlan plan = support::small_plan(GetParam(), "bf16", 20);
  const auto run = [](const config::RunPlan& of, bool goes_back) {
    std::vector<double> losses(20);
    const TempDir dir;
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    comm::run_ranks(of.grid.world_size, [&](comm::World& world) {
      std::vector<double> mine(20);
      train::Engine engine(world, of);
      engine.allocate();
      train::Saver saver(engine, of, {1, 2}, *fs, dir.path());
      train::Progress progress;
      train_on(engine, progress, 10, of.train.global_batch, mine);
      if (goes_back) {
        saver.save(progress);
        train_on(engine, progress, 15, of.train.global_batch, mine);
        progress = saver.resume()->progress;
        EXPECT_EQ(progress.step, 10);
      }
      train_on(engine, progress, 20, of.train.global_batch, mine);
      if (world.rank() == 0) losses = mine;
    });
    return losses;
  };
  const std::vector<double> eager = run(plan, false);
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    EXPECT_EQ(run(support::with_graphs(plan, way, 3), true), eager);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GraphResume,
                         ::testing::Values(Grid{}, Grid{.pp = 2}, Grid{.pp = 4, .chunks = 2}, Grid{.tp = 2, .pp = 2},
                                           Grid{.tp = 2, .pp = 2, .sequence_parallel = nn::SequenceParallel::on},
                                           Grid{.pp = 2, .dp = 2, .chunks = 2},
                                           Grid{.dp = 2, .sharding = Sharding::optimizer}),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace megalith
