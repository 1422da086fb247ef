// train.precision = "fp8" on grids of GPUs: one GPU's numbers, and the same bits from graphs, after a checkpoint, under
// recomputation and in a second run.
#include <map>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/tensor/gpu_pretence.h"

#include "tests/gpu/gpu_plan.h"
#include "tests/gpu/saved_gpu_run.h"

namespace megalith {
namespace {

using support::expect_same;
using support::Grid;
using support::relative_error;
using support::SavedRun;
using support::train_to;
using support::trained;
using support::with_graphs;

config::RunPlan fp8_plan(const Grid& grid, Index steps, bool weight_grad) {
  config::RunPlan plan = support::gpu_plan(grid, "fp8", steps);
  plan.fp8.weight_grad = weight_grad;
  return plan;
}

const SavedRun& of_one_gpu(bool weight_grad) {
  static std::map<bool, std::unique_ptr<SavedRun>> runs;
  std::unique_ptr<SavedRun>& run = runs[weight_grad];
  if (run == nullptr) run = std::make_unique<SavedRun>(trained(fp8_plan({}, 20, weight_grad)));
  return *run;
}

TEST(GpuFp8, AnOlderGpuIsRefusedWithWhatToUse) {
  MEGALITH_NEEDS_GPUS(1);
  device::pretend({.is_ampere = true});
  const config::RunPlan plan = fp8_plan({}, 4, false);
  std::string error;
  comm::run_gpu_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    try {
      engine.allocate();
    } catch (const ConfigError& refusal) {
      error = refusal.what();
    }
  });
  device::pretend({});
  EXPECT_THAT(error, ::testing::HasSubstr("train.precision = fp8: [scaled_matmul]"));
  EXPECT_THAT(error, ::testing::HasSubstr("needs compute capability 9.0 (H100, H200)"));
  EXPECT_THAT(error, ::testing::HasSubstr("use bf16 instead"));
}

class GpuFp8Grid : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(
    All, GpuFp8Grid,
    ::testing::Values(Grid{}, Grid{.tp = 2}, Grid{.tp = 2, .sequence_parallel = nn::SequenceParallel::on},
                      Grid{.pp = 2}, Grid{.pp = 2, .chunks = 2}, Grid{.dp = 2},
                      Grid{.dp = 2, .sharding = Sharding::optimizer},
                      Grid{.dp = 2, .sharding = Sharding::optimizer, .shard = ShardedState::gradients},
                      Grid{.tp = 2, .pp = 2}, Grid{.tp = 2, .dp = 2, .sharding = Sharding::optimizer}),
    [](const auto& test) { return test.param.name(); });

/// The bands of docs/numerics.md. Without tp the operands of the first step are those of one GPU.
TEST_P(GpuFp8Grid, TrainsAsOneGpu) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  for (const bool weight_grad : {false, true}) {
    SCOPED_TRACE(weight_grad);
    const SavedRun got = trained(fp8_plan(GetParam(), 20, weight_grad));
    if (!comm::is_here(0)) continue;
    const SavedRun& want = of_one_gpu(weight_grad);
    EXPECT_NEAR(got.losses[0], want.losses[0], (GetParam().tp == 1 ? 1e-6 : 2e-3) * want.losses[0]);
    EXPECT_LE(relative_error(got.losses, want.losses), 2e-3);
    EXPECT_LE(relative_error(got.norms, want.norms), 5e-2);
    EXPECT_LE(relative_error(got.evaluated, want.evaluated), 2e-3);
  }
}

TEST_P(GpuFp8Grid, StepsFromGraphsHaveTheBitsOfEagerOnesAlsoAcrossACheckpoint) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  for (const bool weight_grad : {false, true}) {
    SCOPED_TRACE(weight_grad);
    const config::RunPlan plan = fp8_plan(GetParam(), 20, weight_grad);
    const SavedRun eager = trained(plan);
    expect_same(trained(plan), eager);
    for (const support::GraphWay& way : support::kGraphWays) {
      SCOPED_TRACE(way.name);
      const TempDir dir;
      SavedRun joined;
      train_to(0, 9, with_graphs(plan, way), dir.path(), joined);
      train_to(9, 20, with_graphs(plan, way), dir.path(), joined);
      expect_same(joined, eager);
    }
  }
}

TEST_P(GpuFp8Grid, FullRecomputationChangesNoBit) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  for (const bool weight_grad : {false, true}) {
    SCOPED_TRACE(weight_grad);
    const config::RunPlan plan = fp8_plan(GetParam(), 10, weight_grad);
    config::RunPlan again = plan;
    again.recompute.mode = nn::RecomputeMode::full;
    expect_same(trained(again), trained(plan));
  }
}

}  // namespace
}  // namespace megalith
