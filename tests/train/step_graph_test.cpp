#include "megalith/train/engine.h"

#include "tests/support/count_allocations.h"
#include "tests/train/graph_run.h"

// Steps that run from one graph, against eager ones: the same bits, whatever the grid.
namespace megalith {
namespace {

using support::expect_same;
using support::Grid;

enum class GraphHolds : std::uint8_t { nothing, passes, whole_step };

config::RunPlan with_graph(config::RunPlan plan, GraphHolds holds) {
  if (holds == GraphHolds::nothing) return plan;
  plan.graphs.mode = capture::GraphMode::iteration;
  plan.graphs.warmup_steps = 3;
  plan.graphs.optimizer = holds == GraphHolds::whole_step;
  return plan;
}

config::RunPlan plan_of(const Grid& grid, const std::string& precision, GraphHolds holds, Index steps) {
  return with_graph(support::small_plan(grid, precision, steps), holds);
}

std::unique_ptr<support::GraphRun> graph_run(const config::RunPlan& plan) {
  const bool from_graph = plan.graphs.mode == capture::GraphMode::iteration;
  return support::run_of(plan, [&](const train::Engine& engine, Index evaluated_batches) {
    EXPECT_EQ(engine.train_graph().captured(), from_graph);
    EXPECT_EQ(engine.eval_graph().captured(), from_graph && evaluated_batches > plan.graphs.warmup_steps);
  });
}

class StepGraphGrid : public ::testing::TestWithParam<Grid> {};

TEST_P(StepGraphGrid, FiftyStepsFromAGraphHaveTheBitsOfEagerOnes) {
  const auto eager = graph_run(plan_of(GetParam(), "fp32", GraphHolds::nothing, 50));
  ASSERT_EQ(eager->evaluated.size(), 5u);
  for (const GraphHolds holds : {GraphHolds::passes, GraphHolds::whole_step}) {
    expect_same(*graph_run(plan_of(GetParam(), "fp32", holds, 50)), *eager);
  }
}

INSTANTIATE_TEST_SUITE_P(All, StepGraphGrid, ::testing::ValuesIn(support::graph_grids()),
                         [](const auto& test) { return test.param.name(); });

TEST(StepGraph, AllPoliciesHaveTheBitsOfEagerSteps) {
  const Grid grid{.tp = 2, .pp = 2};
  for (const char* precision : {"fp64", "bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    expect_same(*graph_run(plan_of(grid, precision, GraphHolds::whole_step, 12)),
                *graph_run(plan_of(grid, precision, GraphHolds::nothing, 12)));
  }
}

TEST(StepGraph, UnevenStagesAndASingleMicrobatchHaveTheBitsOfEagerSteps) {
  for (const auto& [name, plan] : support::uneven_plans("fp32", 12)) {
    SCOPED_TRACE(name);
    const auto eager = graph_run(plan);
    for (const GraphHolds holds : {GraphHolds::passes, GraphHolds::whole_step})
      expect_same(*graph_run(with_graph(plan, holds)), *eager);
  }
}

TEST(StepGraph, AShardedOptimizersStepsHaveTheBitsOfEagerPlainOnes) {
  constexpr Index kShortRun = 50;
  for (Grid grid : {Grid{.dp = 2}, Grid{.dp = 4}, Grid{.pp = 2, .dp = 2, .chunks = 2}}) {
    const auto plain = graph_run(plan_of(grid, "bf16", GraphHolds::nothing, kShortRun));
    grid.sharding = Sharding::optimizer;
    for (const GraphHolds holds : {GraphHolds::passes, GraphHolds::whole_step}) {
      config::RunPlan plan = plan_of(grid, "bf16", holds, kShortRun);
      plan.graphs.check_steps = 3;
      // The last step is followed by an evaluation, which gathers the parameters.
      support::expect_same_training(*graph_run(plan), *plain);
    }
  }
}

TEST(StepGraph, OneStepBeforeItIsEnough) {
  const Grid grid{.tp = 2, .pp = 2};
  config::RunPlan plan = plan_of(grid, "bf16", GraphHolds::whole_step, 12);
  plan.graphs.warmup_steps = 1;
  expect_same(*graph_run(plan), *graph_run(plan_of(grid, "bf16", GraphHolds::nothing, 12)));
}

TEST(StepGraph, TakesWhatThePlanSaysAndALaunchAllocatesNothing) {
  const config::RunPlan plan = plan_of({.tp = 2, .pp = 2}, "fp32", GraphHolds::whole_step, 6);
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    const std::unique_ptr<comm::World> dry = comm::dry_world(world.rank(), world.size());
    const BytesByOwner planned = train::Engine(*dry, plan).planned_bytes();
    train::Engine engine(world, plan);
    engine.allocate();
    EXPECT_EQ(engine.taken_bytes(), planned);
    const support::HashedBatches source(plan.model.vocab_size);
    for (Index step = 0; step < plan.train.steps; ++step) {
      const support::CountAllocations counter;
      engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
      if (step <= plan.graphs.warmup_steps + 1) continue;  // debug builds check the one after the capture
      EXPECT_TRUE(engine.train_graph().captured());
      EXPECT_EQ(counter.count(), 0) << "rank " << world.rank() << ", step " << step;
    }
    EXPECT_EQ(engine.taken_bytes(), planned);
  });
}

}  // namespace
}  // namespace megalith
