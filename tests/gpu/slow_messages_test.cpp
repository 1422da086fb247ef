// Messages between GPUs that come late. Gradients on their way to the stage before: the sender goes on meanwhile, and
// must keep them until they are taken. Gathered parameters: nothing that reads them may run before they are there.
#include <utility>

#include <gtest/gtest.h>

#include "megalith/train/gather.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/comm/wrapped_world.h"
#include "tests/gpu/gpu_plan.h"
#include "tests/io/temp_dir.h"
#include "tests/support/twin.h"
#include "tests/train/graph_ways.h"
#include "tests/train/saved_run.h"

namespace megalith {
namespace {

using support::Grid;
using support::SavedRun;

/// Gathers, and sends and receives of gradients, begin about a millisecond after the caller's stream has come to them;
/// it does not wait for that.
class SlowChannel final : public comm::ForwardingChannel {
 public:
  explicit SlowChannel(const comm::Group& group)
      : ForwardingChannel(group), idle_work_(kIdleBytes, Device::cuda), reached_(Device::cuda), slow_(Device::cuda) {}

  comm::Ticket all_gather(const comm::Call& call, const void* in, void* out, Stream stream) override {
    return inner().all_gather(call, in, out, later(stream));
  }
  comm::Ticket post_send(const comm::Call& call, const void* data, Stream stream) override {
    return inner().post_send(call, data, is_gradient(call) ? later(stream) : stream);
  }
  comm::Ticket post_recv(const comm::Call& call, void* data, Stream stream) override {
    return inner().post_recv(call, data, is_gradient(call) ? later(stream) : stream);
  }

 private:
  static constexpr Index kIdleBytes = Index{256} << 20;
  static constexpr int kTimes = 10;  // about 0.1 ms each

  static bool is_gradient(const comm::Call& call) { return call.lane == static_cast<int>(pipeline::Flow::gradient); }
  Stream later(Stream stream) {
    reached_.record(stream);
    reached_.hold(slow_.get());
    for (int i = 0; i < kTimes; ++i)
      device::fill_bytes(Device::cuda, idle_work_.data(), i, idle_work_.bytes(), slow_.get());
    return slow_.get();
  }

  Buffer idle_work_;
  Event reached_;
  OwnedStream slow_;
};

SavedRun run_of(const config::RunPlan& plan, bool slow) {
  const TempDir dir;
  SavedRun run;
  const auto rank = [&](comm::World& world) {
    const io::Path folder = train::share_text(world, dir.path().string());
    if (!slow) return support::train_saved(world, 0, plan.train.steps, plan, folder, run);
    comm::WrappedWorld<SlowChannel> slowed(world);
    support::train_saved(slowed, 0, plan.train.steps, plan, folder, run);
  };
  comm::run_gpu_ranks(plan.grid.world_size, rank, {.timeout_s = 60});
  return run;
}

class GpuSlowMessages : public ::testing::TestWithParam<Grid> {};

TEST_P(GpuSlowMessages, ChangeNoBits) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  const config::RunPlan plan = support::gpu_plan(GetParam(), "bf16", 10);
  const SavedRun usual = run_of(plan, false);
  {
    SCOPED_TRACE("eager");
    expect_same(run_of(plan, true), usual);
  }
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    expect_same(run_of(support::with_graphs(plan, way, 3), true), usual);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GpuSlowMessages,
    ::testing::Values(Grid{.pp = 2}, Grid{.pp = 2, .chunks = 2},
                      Grid{.tp = 2, .sequence_parallel = nn::SequenceParallel::on},
                      Grid{.dp = 2, .sharding = Sharding::optimizer}, Grid{.pp = 4, .chunks = 2},
                      Grid{.tp = 2, .pp = 2}, Grid{.pp = 2, .dp = 2, .sharding = Sharding::optimizer},
                      Grid{.dp = 2, .sharding = Sharding::optimizer, .shard = ShardedState::gradients}),
    [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace megalith
