// Messages that come late. Input gradients: their senders go on meanwhile, and must keep them until the stage before
// has taken them. Gathered parameters: no graph may be launched before those that it reads are there. Sums of sharded
// gradients: until they are awaited, no later layer or microbatch may write their window.
#include <chrono>
#include <deque>
#include <map>
#include <thread>

#include "tests/comm/late_gathers.h"
#include "tests/train/graph_run.h"

namespace megalith {
namespace {

using comm::ForwardingChannel;
using comm::LateGathers;
using support::Grid;

/// Takes gradients no earlier than they are waited for, and then some time later: until then they lie where the sender
/// has them.
class LateGradients final : public ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  comm::Ticket post_recv(const comm::Call& call, void* data, Stream stream) override {
    if (call.lane != static_cast<int>(pipeline::Flow::gradient)) return inner().post_recv(call, data, stream);
    late_.push_back({call, data});
    return {kLate + posted_++, call.entry};
  }
  void wait(comm::Ticket ticket, Stream stream) override {
    if (ticket.id < kLate) return inner().wait(ticket, stream);
    EXPECT_EQ(ticket.id - kLate, posted_ - static_cast<std::int64_t>(late_.size())) << "gradients are awaited in order";
    const Late message = late_.front();
    late_.pop_front();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    inner().wait(inner().post_recv(message.call, message.data, stream), stream);
  }
  void cancel(comm::Ticket ticket) noexcept override {
    if (ticket.id < kLate) inner().cancel(ticket);
  }

 private:
  struct Late {
    comm::Call call;
    void* data;
  };
  std::deque<Late> late_;
  std::int64_t posted_ = 0;
};

/// Runs with late messages, eagerly and in every way to run from graphs; check(run) of what each leaves.
template <class LateChannel, class Check>
void for_late_runs(config::RunPlan plan, const support::AtTheEnd& at_the_end, Check&& check) {
  using capture::GraphMode;
  plan.graphs.warmup_steps = 2;
  for (const GraphMode mode : {GraphMode::none, GraphMode::layers, GraphMode::iteration}) {
    for (const capture::GraphsPer per : {capture::GraphsPer::microbatch, capture::GraphsPer::slot}) {
      if (mode != GraphMode::layers && per == capture::GraphsPer::slot) continue;
      SCOPED_TRACE(std::string(name(mode)) + " " + std::string(name(per)));
      plan.graphs.mode = mode;
      plan.graphs.per = per;
      support::GraphRun late;
      comm::run_ranks(plan.grid.world_size,
                      [&](comm::World& world) {
                        comm::WrappedWorld<LateChannel> slow(world);
                        support::train_rank(slow, plan, late, at_the_end);
                      },
                      {.timeout_s = 60});
      check(late);
    }
  }
}

/// Sums nothing before it is waited for, and then what is there.
class LateScatters final : public ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  ~LateScatters() override { EXPECT_TRUE(late_.empty()) << late_.size() << " sums were never awaited"; }
  comm::Ticket reduce_scatter(const comm::Call& call, const void* in, void* out, Stream) override {
    late_.emplace(kLate + posted_, Late{call, in, out});
    return {kLate + posted_++, call.entry};
  }
  void wait(comm::Ticket ticket, Stream stream) override {
    if (ticket.id < kLate) return inner().wait(ticket, stream);
    const auto late = late_.extract(ticket.id);
    ASSERT_FALSE(late.empty()) << "a sum is awaited twice";
    const Late& sum = late.mapped();
    const comm::Ticket summed = inner().reduce_scatter(sum.call, sum.in, sum.out, stream);
    if (summed.id >= 0) inner().wait(summed, stream);
  }
  void cancel(comm::Ticket ticket) noexcept override {
    if (late_.erase(ticket.id) == 0) inner().cancel(ticket);
  }

 private:
  struct Late {
    comm::Call call;
    const void* in;
    void* out;
  };
  std::map<std::int64_t, Late> late_;
  std::int64_t posted_ = 0;
};

class LateGradientsGrid : public ::testing::TestWithParam<Grid> {};

TEST_P(LateGradientsGrid, ChangeNoBits) {
  const config::RunPlan plan = support::small_plan(GetParam(), "fp32", 8);
  const auto want = support::run_of(plan, [](train::Engine&, Index) {});
  for_late_runs<LateGradients>(
      plan, [](train::Engine&, Index) {}, [&](const support::GraphRun& late) { support::expect_same(late, *want); });
}

INSTANTIATE_TEST_SUITE_P(Pipelines, LateGradientsGrid,
                         ::testing::Values(Grid{.pp = 2}, Grid{.pp = 4}, Grid{.pp = 2, .chunks = 2},
                                           Grid{.tp = 2, .pp = 2}),
                         [](const auto& test) { return test.param.name(); });

class LateGathersGrid : public ::testing::TestWithParam<Grid> {};

TEST_P(LateGathersGrid, AreAwaitedOnceBeforeWhatReadsThem) {
  Grid grid = GetParam();
  const auto plain = support::run_of(support::small_plan(grid, "fp32", 10), [](train::Engine&, Index) {});
  grid.sharding = Sharding::optimizer;
  const config::RunPlan plan = support::small_plan(grid, "fp32", 10);
  for_late_runs<LateGathers>(
      plan,
      [&](train::Engine& engine, Index) {
        // A step gathers each bucket once, and so does an evaluation. Debug builds run a step from graphs once more.
        const auto buckets = static_cast<Index>(engine.stage().params().dense().buckets().size());
        const bool once_more = build::is_debug && engine.captured_graphs().stats.graphs > 0;
        EXPECT_EQ(engine.mesh().dp.counters()[comm::Op::all_gather].calls,
                  buckets * (plan.train.steps + 1 + Index{once_more}));
      },
      [&](const support::GraphRun& late) { support::expect_same_training(late, *plain); });
}

INSTANTIATE_TEST_SUITE_P(Sharded, LateGathersGrid,
                         ::testing::Values(Grid{.dp = 2},
                                           Grid{.tp = 2, .dp = 2, .sequence_parallel = nn::SequenceParallel::on},
                                           Grid{.pp = 2, .dp = 2, .chunks = 2}),
                         [](const auto& test) { return test.param.name(); });

class LateScattersGrid : public ::testing::TestWithParam<Grid> {};

TEST_P(LateScattersGrid, AreAwaitedBeforeTheirWindowIsWritten) {
  Grid grid = GetParam();
  grid.sharding = Sharding::optimizer;
  grid.shard = ShardedState::gradients;
  const config::RunPlan plan = support::small_plan(grid, "fp32", 10);
  const auto want = support::run_of(plan, [](train::Engine&, Index) {});
  for_late_runs<LateScatters>(
      plan, [](train::Engine&, Index) {},
      [&](const support::GraphRun& late) { support::expect_same_training(late, *want); });
}

INSTANTIATE_TEST_SUITE_P(Sharded, LateScattersGrid,
                         ::testing::Values(Grid{.dp = 2},
                                           Grid{.tp = 2, .dp = 2, .sequence_parallel = nn::SequenceParallel::on},
                                           Grid{.pp = 2, .dp = 2, .chunks = 2}),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace megalith
