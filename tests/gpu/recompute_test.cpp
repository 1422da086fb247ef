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

std::unique_ptr<support::GraphRun> run(const config::RunPlan& plan) {
  auto into = std::make_unique<support::GraphRun>();
  comm::run_gpu_ranks(
      1, [&](comm::World& world) { support::train_rank(world, plan, *into, [](train::Engine&, Index) {}); });
  return into;
}

TEST(GpuRecompute, HasTheBitsOfKeptActivationsEagerlyAndFromGraphs) {
  MEGALITH_NEEDS_GPUS(1);
  for (const double attention_dropout : {0.0, 0.1}) {
    config::RunPlan plan = support::gpu_plan({}, "bf16", kSteps);
    plan.model.attention_dropout = attention_dropout;
    const std::unique_ptr<support::GraphRun> kept = run(plan);
    for (const support::RecomputeWay& mode : support::recompute_ways()) {
      if (mode.config.has(nn::RecomputeModule::gelu)) continue;  // of rounded numbers (ops::Gelu)
      SCOPED_TRACE(str(mode.name, ", attention_dropout ", attention_dropout));
      plan.recompute = mode.config;
      support::expect_same(*run(plan), *kept);
      for (const support::GraphWay& way : {support::kWholeSteps, support::kLayersPerSlot}) {
        SCOPED_TRACE(way.name);
        support::expect_same(*run(support::with_graphs(plan, way, kWarmup)), *kept);
      }
    }
  }
}

// SwiGLU reads the rounded result of its GEMM, also where one kernel computes both.
TEST(GpuRecompute, OfSwigluHasTheBitsOfKeptOnes) {
  MEGALITH_NEEDS_GPUS(1);
  config::RunPlan plan = support::gpu_plan({}, "bf16", kSteps, "llama");
  const std::unique_ptr<support::GraphRun> kept = run(plan);
  for (const nn::RecomputeModule module : {nn::RecomputeModule::gelu, nn::RecomputeModule::mlp}) {
    SCOPED_TRACE(module == nn::RecomputeModule::gelu ? "gelu" : "mlp");
    plan.recompute = support::selective({module});
    support::expect_same(*run(plan), *kept);
  }
}

}  // namespace
}  // namespace megalith
