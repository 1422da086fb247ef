// Steps that compute activations again on a GPU, by cuDNN and Tensor Cores, against steps that keep them: the same
// bits.
#include <memory>

#include "tests/gpu/gpu_plan.h"
#include "tests/support/twin.h"
#include "tests/train/graph_run.h"
#include "tests/train/graph_ways.h"
#include "tests/train/recompute_modes.h"

namespace megalith {
namespace {

constexpr Index kSteps = 11, kWarmup = 2;  // an evaluation after the tenth

std::unique_ptr<testing::GraphRun> run(const config::RunPlan& plan) {
  auto into = std::make_unique<testing::GraphRun>();
  comm::run_gpu_ranks(
      1, [&](comm::World& world) { testing::train_rank(world, plan, *into, [](train::Engine&, Index) {}); });
  return into;
}

TEST(GpuRecompute, HasTheBitsOfKeptActivationsEagerlyAndFromGraphs) {
  MEGALITH_NEEDS_GPUS(1);
  for (const double attention_dropout : {0.0, 0.1}) {
    config::RunPlan plan = testing::gpu_plan({}, "bf16", kSteps);
    plan.model.attention_dropout = attention_dropout;
    const std::unique_ptr<testing::GraphRun> kept = run(plan);
    for (const testing::RecomputeWay& mode : testing::recompute_ways()) {
      if (mode.config.again(nn::RecomputeModule::gelu)) continue;  // of rounded numbers (ops::Gelu)
      SCOPED_TRACE(str(mode.name, ", attention_dropout ", attention_dropout));
      plan.recompute = mode.config;
      testing::expect_same(*run(plan), *kept);
      for (const testing::GraphWay& way : {testing::kWholeSteps, testing::kLayersPerSlot}) {
        SCOPED_TRACE(way.name);
        testing::expect_same(*run(testing::with_graphs(plan, way, kWarmup)), *kept);
      }
    }
  }
}

}  // namespace
}  // namespace megalith
