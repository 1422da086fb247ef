// Graphs of steps whose batch grows: captured again at each size, with the bits of eager steps.
#include "megalith/config/moe_rules.h"
#include "megalith/train/graph_accounting.h"

#include "tests/io/temp_dir.h"
#include "tests/train/graph_ways.h"
#include "tests/train/moe_run.h"
#include "tests/train/ramp_run.h"
#include "tests/train/saved_run.h"

namespace megalith {
namespace {

using support::GraphWay;
using support::Grid;
using support::MoeGrid;
using support::SavedRun;

constexpr Index kGrowingSteps = 14, kGrowingWarmup = 2;

config::RunPlan growing_plan(const Grid& grid, const char* precision, const char* family = "gpt2") {
  config::RunConfig c = support::small_config(grid, precision, kGrowingSteps);
  c.train.global_batch.reset();
  c.train.batch_ramp = support::ramp_from(grid.chunks > 1 ? grid.dp * grid.pp : 2);
  c.model.family = family;
  if (std::string_view(family) == "bert") c.bert.mask_fraction = 0.5;
  return config::resolve(c);
}

/// A run that was saved and resumed at these steps.
SavedRun grown_in_parts(const config::RunPlan& plan, const std::vector<Index>& saved_at) {
  std::vector<Index> ends = saved_at;
  ends.push_back(kGrowingSteps);
  return support::trained_in_parts(plan, ends);
}

config::RunPlan graphs_in_way(const config::RunPlan& eager, const GraphWay& way, Index check = 0) {
  config::RunPlan plan = support::with_graphs(eager, way, kGrowingWarmup);
  plan.graphs.check_steps = check;
  return plan;
}

class RampGraphs : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(Grids, RampGraphs,
                         ::testing::Values(Grid{}, Grid{.pp = 2}, Grid{.pp = 4}, Grid{.dp = 2},
                                           Grid{.pp = 2, .chunks = 2}, Grid{.tp = 2, .pp = 2, .chunks = 2},
                                           Grid{.pp = 2, .dp = 2, .chunks = 2, .sharding = Sharding::optimizer}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(RampGraphs, HaveTheBitsOfEagerSteps) {
  const config::RunPlan eager = growing_plan(GetParam(), "bf16");
  const SavedRun want = grown_in_parts(eager, {});
  for (const GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    support::expect_same(grown_in_parts(graphs_in_way(eager, way), {}), want);
    // Within a size whose graphs were launched, and at the last step of one.
    support::expect_same(grown_in_parts(graphs_in_way(eager, way), {3, 6}), want);
  }
}

TEST(GrowingGraphs, OfMaskedModelsHaveTheBitsOfEagerSteps) {
  const config::RunPlan eager = growing_plan({.tp = 2, .pp = 2}, "fp32", "bert");
  const SavedRun want = grown_in_parts(eager, {});
  for (const GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    support::expect_same(grown_in_parts(graphs_in_way(eager, way), {5}), want);
  }
}

TEST(GrowingGraphs, OfExpertsHaveTheBitsOfEagerSteps) {
  const support::MoeModel& model =
      *std::ranges::find(support::moe_models(), std::string_view("GlobalLoss"), &support::MoeModel::name);
  for (const MoeGrid& grid : {MoeGrid{2, 1, 1, 2, 1}, MoeGrid{4, 1, 2, 2, 1, 2}}) {
    for (const GraphWay& way : {support::kWholeSteps, support::kLayers}) {
      SCOPED_TRACE(grid.name() + " " + way.name);
      config::RunConfig c = support::moe_config(grid, model, "bf16", kGrowingSteps);
      c.train.global_batch.reset();
      c.train.batch_ramp = support::ramp_from(8);
      c.moe.dispatcher = "peer";
      const config::RunPlan eager = config::resolve(c);
      config::RunPlan graphs = graphs_in_way(eager, way);
      if (way.mode == capture::GraphMode::layers) graphs.graphs.scopes = config::graph_scopes(eager);
      support::expect_same(grown_in_parts(graphs, {6}), grown_in_parts(eager, {}));
    }
  }
}

// graphs.check compares the first launches at every size.
TEST(GrowingGraphs, AreComparedAtEachSize) {
  for (const GraphWay& way : {support::kWholeSteps, support::kLayers}) {
    SCOPED_TRACE(way.name);
    const config::RunPlan plan = graphs_in_way(growing_plan({.pp = 2, .chunks = 2}, "fp32"), way, 1);
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      const support::HashedBatches source(plan.model.vocab_size);
      train::Progress progress;
      while (progress.step < kGrowingSteps) {
        engine.step(source, progress, train::Stop::no);
        progress = {progress.step + 1, progress.samples + plan.train.batch_after(progress.samples)};
      }
      EXPECT_EQ(engine.captures(), support::kRampSizes);
      EXPECT_EQ(engine.steps_checked(), support::kRampSizes);
    });
  }
}

/// After each step: how often graphs were captured. With the numbers of graphs and launches that the step's size plans.
TEST(GrowingGraphs, AreCapturedInTheFirstStepOfASizeAndLaunchedInTheNext) {
  for (const GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    const config::RunPlan plan = graphs_in_way(growing_plan({.pp = 2, .chunks = 2}, "fp32"), way);
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      const BytesByOwner planned = engine.planned_bytes();
      EXPECT_EQ(engine.taken_bytes(), planned);
      const support::HashedBatches source(plan.model.vocab_size);
      train::Progress progress;
      std::vector<Index> captures, launches;
      while (progress.step < kGrowingSteps) {
        engine.step(source, progress, train::Stop::no);
        progress = {progress.step + 1, progress.samples + plan.train.batch_after(progress.samples)};
        captures.push_back(engine.captures());
        launches.push_back(engine.captured_graphs().launches_per_step);
        if (engine.captures() == 0) continue;
        const std::vector<train::GraphAccount> accounts = train::account_for_graphs(engine, plan);
        const train::GraphAccount& mine = accounts[static_cast<std::size_t>(world.rank())];
        EXPECT_EQ(mine.graphs, mine.planned_graphs) << "step " << progress.step;
        EXPECT_EQ(mine.launches, mine.planned_launches) << "step " << progress.step;
      }
      EXPECT_EQ(captures, (std::vector<Index>{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4, 4, 4}));
      if (way.mode == capture::GraphMode::layers) {
        EXPECT_EQ(launches[8], 4 * launches[3]) << "a forward and a backward graph for each layer and microbatch";
      }
      EXPECT_EQ(engine.taken_bytes(), planned);
    });
  }
}

}  // namespace
}  // namespace megalith
