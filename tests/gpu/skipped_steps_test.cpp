#include "tests/train/skipped_steps.h"

#include "megalith/ops/elementwise_kernels.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/comm/wrapped_world.h"
#include "tests/gpu/gpu_plan.h"

// A number that is not finite on one GPU: all skip the step, by themselves.
namespace megalith {
namespace {

using capture::GraphsConfig;
using support::Broken;
using support::Grid;

config::RunPlan plan_of(const Grid& grid, const std::string& precision, const GraphsConfig& graphs = {}) {
  config::RunPlan plan = support::gpu_plan(grid, precision, 8);
  plan.graphs = graphs;
  return plan;
}

const GraphsConfig kWhole = support::graphs_of(support::kWholeSteps, support::kWarmupSteps);

/// How rank 0 overflows: where it can, with a forward pass that is as it should be.
support::Break overflow_of(const Grid& grid) {
  return grid.pp > 1 ? support::break_embedding_gradient : support::break_forward;
}

class GpuSkippedSteps : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(All, GpuSkippedSteps,
                         ::testing::Values(Grid{}, Grid{.tp = 2},
                                           Grid{.tp = 2, .sequence_parallel = nn::SequenceParallel::on}, Grid{.pp = 2},
                                           Grid{.dp = 2}, Grid{.dp = 2, .sharding = Sharding::optimizer},
                                           Grid{.tp = 2, .pp = 2}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(GpuSkippedSteps, FollowTheEventsOfLossScalingOnAllRanks) {
  const Grid grid = GetParam();
  MEGALITH_NEEDS_GPU_RANKS(grid.ranks());
  std::vector<GraphsConfig> ways = support::graph_ways();
  ways.push_back({});
  for (const GraphsConfig& graphs : ways) {
    SCOPED_TRACE(support::name_of(graphs));
    const std::vector<bool> finite =
        support::run_events(comm::run_gpu_ranks, plan_of(grid, "fp16", graphs), 0, overflow_of(grid));
    EXPECT_FALSE(finite[0]);
  }
}

TEST_P(GpuSkippedSteps, LeaveNoTrace) {
  const Grid grid = GetParam();
  MEGALITH_NEEDS_GPU_RANKS(grid.ranks());
  const std::vector<support::Kept> want = support::run_past(comm::run_gpu_ranks, plan_of(grid, "fp16"), std::nullopt);
  const auto expect_no_trace = [&](const GraphsConfig& graphs, const Broken& broken) {
    SCOPED_TRACE(support::name_of(graphs) + ", rank " + std::to_string(broken.rank));
    support::expect_same_steps(support::run_past(comm::run_gpu_ranks, plan_of(grid, "fp16", graphs), broken), want);
  };
  const Broken nan = support::broken_gradients(grid.ranks() - 1), overflow{0, overflow_of(grid)};
  expect_no_trace({}, nan);
  for (const GraphsConfig& graphs : support::graph_ways()) expect_no_trace(graphs, overflow);
  expect_no_trace(kWhole, nan);
  for (const GraphsConfig& graphs :
       {GraphsConfig{}, support::graphs_of(support::kLayersPerSlot, support::kWarmupSteps)}) {
    SCOPED_TRACE("one gradient, " + support::name_of(graphs));
    const config::RunPlan plan = plan_of(grid, "fp16", graphs);
    const support::MeddlingBatches source(plan.model.vocab_size);
    const Broken one = support::nan_in_gradient(0, "layers.1.norm2.bias", plan, source);
    support::expect_same_steps(support::run_past(comm::run_gpu_ranks, plan, one, source), want);
  }
}

/// Adds a number in device memory to one of the gradients that its rank sends, then clears it: 0 but where
/// spoil_next() has made it NaN, also for calls that a graph repeats.
class SpoilingChannel final : public comm::ForwardingChannel {
 public:
  explicit SpoilingChannel(const comm::Group& group) : ForwardingChannel(group), memory_(kAlignment, Device::cuda) {}
  static void spoil_next(train::Engine& engine) {
    static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    engine.exec().copy(of_this_thread_, &kNan, sizeof kNan);
  }
  comm::Ticket reduce_scatter(const comm::Call& call, const void* in, void* out, Stream stream) override {
    if (call.dtype == DType::f32) {
      auto* const data = static_cast<float*>(const_cast<void*>(in));
      const Tensor number(data + call.count / 2, {1}, DType::f32), spoil = memory_.view({1}, DType::f32);
      ops::cuda::add(stream, number, spoil, number);
      device::fill_bytes(Device::cuda, spoil.raw(), 0, spoil.bytes(), stream);
      of_this_thread_ = spoil.raw();
    }
    return ForwardingChannel::reduce_scatter(call, in, out, stream);
  }

 private:
  static thread_local void* of_this_thread_;
  Buffer memory_;
};
thread_local void* SpoilingChannel::of_this_thread_ = nullptr;

class GpuSpoiledSums : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(All, GpuSpoiledSums,
                         ::testing::Values(Grid{.dp = 2}, Grid{.dp = 2, .sharding = Sharding::optimizer},
                                           Grid{.tp = 2, .dp = 2}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(GpuSpoiledSums, ByOneNumberOfOneRankSkipTheStepOnAll) {
  const Grid grid = GetParam();
  MEGALITH_NEEDS_GPU_RANKS(grid.ranks());
  const support::RunRanks run_spoiling = [](int size, const std::function<void(comm::World&)>& body) {
    comm::run_gpu_ranks(size, [&](comm::World& world) {
      comm::WrappedWorld<SpoilingChannel> spoiling(world);
      body(spoiling);
    });
  };
  const std::vector<support::Kept> want = support::run_past(comm::run_gpu_ranks, plan_of(grid, "fp16"), std::nullopt);
  std::vector<GraphsConfig> ways = support::graph_ways();
  ways.push_back({});
  for (const GraphsConfig& graphs : ways) {
    SCOPED_TRACE(support::name_of(graphs));
    const Broken one{grid.ranks() - 1, SpoilingChannel::spoil_next};
    support::expect_same_steps(support::run_past(run_spoiling, plan_of(grid, "fp16", graphs), one), want);
  }
}

TEST_P(GpuSkippedSteps, EndABf16RunFromGraphsAsTheyEndAnEagerOne) {
  const Grid grid = GetParam();
  MEGALITH_NEEDS_GPU_RANKS(grid.ranks());
  const int bad_rank = grid.ranks() - 1;
  const std::vector<std::string> eager = support::errors_of_nan(comm::run_gpu_ranks, plan_of(grid, "bf16"), bad_rank);
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    const std::string& error = eager[static_cast<std::size_t>(rank)];
    const bool told = error.find("parameters stay those of step 4") != std::string::npos;
    EXPECT_EQ(told, comm::is_here(rank)) << error;
  }
  EXPECT_EQ(support::errors_of_nan(comm::run_gpu_ranks, plan_of(grid, "bf16", kWhole), bad_rank), eager);
}

}  // namespace
}  // namespace megalith
