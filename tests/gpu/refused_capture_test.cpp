// A capture that is refused on one GPU: all ranks end, and the GPUs are as good as before.
#include <array>

#include "tests/comm/gpu_ranks.h"
#include "tests/gpu/gpu_plan.h"
#include "tests/support/twin.h"
#include "tests/train/differing_steps.h"
#include "tests/train/graph_run.h"
#include "tests/train/refused_steps.h"

namespace megalith {
namespace {

using support::Grid;

class GpuRefusedCaptures : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(All, GpuRefusedCaptures,
                         ::testing::Values(Grid{}, Grid{.tp = 2}, Grid{.pp = 2}, Grid{.dp = 2}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(GpuRefusedCaptures, EndAllRanksAndLeaveTheGpusUsable) {
  const Grid grid = GetParam();
  MEGALITH_NEEDS_GPUS(grid.ranks());
  constexpr Index kAllSteps = 6;
  const int last = grid.ranks() - 1;  // of the last stage
  const auto losses_of = [](const config::RunPlan& plan) {
    support::GraphRun run;
    comm::run_gpu_ranks(plan.grid.world_size, [&](comm::World& world) {
      support::train_rank(world, plan, run, [](train::Engine&, Index) {});
    });
    return run.record.losses;
  };
  const std::vector<double> want = losses_of(support::gpu_plan(grid, "bf16", kAllSteps));
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    const config::RunPlan plan =
        support::with_graphs(support::gpu_plan(grid, "bf16", kAllSteps), way, support::kCheckWarmup);
    std::array<Buffer, 2> foreign;
    const std::string error = support::error_of(
        comm::run_gpu_ranks, plan,
        [&](train::Engine& engine, int rank, Index step) {
          if (rank == last && step == support::kCheckWarmup)
            support::move_out_of_the_plan(engine, "layers.5.norm1.weight", foreign[static_cast<std::size_t>(rank)]);
        },
        support::HashedBatches(plan.model.vocab_size));
    EXPECT_TRUE(error.starts_with(str("rank ", last, ": step 3: [capture] training, chunk 0, microbatch 0, layer 5: ")))
        << error;
    EXPECT_NE(error.find("lies outside the run's planned memory"), std::string::npos) << error;
    support::expect_same_numbers(losses_of(plan), want);
  }
}

// As on CPUs (Agreement.ACaptureThatRanksDisagreeAboutIsNotLaunched): GPUs do not wait for each other in it.
TEST(GpuDisagreedCaptures, AreNotLaunched) {
  constexpr Grid kGrid{.dp = 2};
  MEGALITH_NEEDS_GPUS(kGrid.ranks());
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    const config::RunPlan plan = support::with_graphs(support::gpu_plan(kGrid, "bf16", 3), way, 1);
    comm::run_gpu_ranks(plan.grid.world_size, [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      const support::HashedBatches source(plan.model.vocab_size);
      engine.step(source, {}, train::Stop::no);
      if (world.rank() == 1) support::miscount(engine.mesh().dp.channel());
      const std::string refusal = support::refusal_of_step(engine, source, {1, plan.train.global_batch});
      EXPECT_TRUE(refusal.starts_with("step 2: [capture]")) << refusal;
      EXPECT_EQ(engine.captured_graphs().launch_s, 0);
    });
  }
}

}  // namespace
}  // namespace megalith
