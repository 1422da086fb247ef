// Steps from graphs whose samples' length 128 does not divide, where cuDNN's backward pass may need to be told it, and
// steps whose attention is in part our own.
#include "megalith/ops/attention.h"
#include "megalith/tensor/gpu_pretence.h"

#include "tests/gpu/gpu_plan.h"
#include "tests/support/twin.h"
#include "tests/train/graph_run.h"
#include "tests/train/graph_ways.h"

namespace megalith {
namespace {

constexpr Index kSteps = 11, kWarmup = 2;  // an evaluation after the tenth

void run(const config::RunPlan& plan, support::GraphRun& into) {
  comm::run_gpu_ranks(
      1, [&](comm::World& world) { support::train_rank(world, plan, into, [](train::Engine&, Index) {}); });
}

/// Returns the last loss.
double expect_graphs_repeat_eager_steps(const config::RunPlan& plan) {
  support::GraphRun eager;
  run(plan, eager);
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    support::GraphRun from_graphs;
    run(support::with_graphs(plan, way, kWarmup), from_graphs);
    support::expect_same(from_graphs, eager);
  }
  return eager.record.losses.back();
}

TEST(GpuAttentionGraphs, OfOddLengthsRepeatEagerSteps) {
  MEGALITH_NEEDS_GPUS(1);
  for (const Index seq_len : {200, 192}) {
    SCOPED_TRACE(::testing::Message() << "samples of " << seq_len);
    config::RunPlan plan = support::gpu_plan({}, "bf16", kSteps);
    plan.model.seq_len = seq_len;
    expect_graphs_repeat_eager_steps(plan);
  }
}

TEST(GpuAttentionGraphs, OfPassesThatTheLibraryRefusesRepeatEagerSteps) {
  MEGALITH_NEEDS_GPUS(1);
  const config::RunPlan plan = support::gpu_plan({}, "bf16", kSteps);
  const double by_library = expect_graphs_repeat_eager_steps(plan);
  for (const bool no_forward : {false, true}) {
    SCOPED_TRACE(::testing::Message() << "no forward " << no_forward);
    device::pretend({.no_library_forward = no_forward, .no_library_backward = true});
    EXPECT_NEAR(expect_graphs_repeat_eager_steps(plan), by_library, 1e-2 * by_library) << "bf16 rounds otherwise";
    device::pretend({});
  }
}

}  // namespace
}  // namespace megalith
