// Delays at random in every rank and stream of runs whose experts have clones change no bits: nothing reads what is not
// there yet, and nothing writes what is still read.
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "megalith/base/hash.h"
#include "megalith/config/moe_rules.h"
#include "megalith/nn/moe/host_numbers.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/comm/peer_ranks.h"
#include "tests/comm/wrapped_world.h"
#include "tests/gpu/echo_run.h"
#include "tests/gpu/spin.h"
#include "tests/support/twin.h"

namespace megalith {
namespace {

using support::EchoRun;
using support::MoeGrid;

/// Numbers of one delay after another.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() { return state_ = hash_combine(state_, 1); }
  bool one_in(std::uint64_t count) { return next() % count == 0; }

 private:
  std::uint64_t state_;
};

constexpr int kOpSpin_us = 40, kCallSpin_us = 200, kHostSleep_us = 300;

/// The stream in which a rank's calls wait: one for all groups, as ranks that share a GPU share its queues.
struct SlowStream {
  OwnedStream stream{Device::cuda};
  Event reached{Device::cuda};
};
thread_local std::optional<SlowStream> slow_stream;

/// Calls between ranks begin late: in a stream of their own, which spins first. Those that read rows of others are made
/// at once, or not until somebody waits for them, so that rows move as early and as late as they may. Hosts sleep.
class DelayingChannel final : public comm::ForwardingChannel {
 public:
  explicit DelayingChannel(const comm::Group& group)
      : ForwardingChannel(group),
        dice_(hash_combine(seed, static_cast<std::uint64_t>(group.channel().world_rank()) + group.channel().key())) {}

  static inline std::uint64_t seed = 0;  ///< of the run: set before its ranks start

  comm::Ticket all_reduce(const comm::Call& call, void* data, Stream stream) override {
    return inner().all_reduce(call, data, later(stream));
  }
  comm::Ticket all_gather(const comm::Call& call, const void* in, void* out, Stream stream) override {
    return inner().all_gather(call, in, out, later(stream));
  }
  comm::Ticket reduce_scatter(const comm::Call& call, const void* in, void* out, Stream stream) override {
    return inner().reduce_scatter(call, in, out, later(stream));
  }
  comm::Ticket gather_rows(const comm::Call& call, const comm::GatherRows& args, Stream stream) override {
    return at_some_time(call, stream, [this, call, args](Stream in) { return inner().gather_rows(call, args, in); });
  }
  comm::Ticket gather_sum_rows(const comm::Call& call, const comm::GatherSumRows& args, Stream stream) override {
    return at_some_time(call, stream,
                        [this, call, args](Stream in) { return inner().gather_sum_rows(call, args, in); });
  }
  Stream stream_of(comm::Ticket ticket) const override {
    return ticket.id >= kLate ? Stream{} : inner().stream_of(ticket);
  }

  void wait(comm::Ticket ticket, Stream stream) override {
    if (ticket.id < kLate) return inner().wait(ticket, stream);
    const auto number = static_cast<std::size_t>(ticket.id - kLate);
    while (made_.size() <= number) make_next(stream);
    if (made_[number].id >= 0) inner().wait(made_[number], stream);
    if (dice_.one_in(4)) support::spin(stream, dice_.next(), kOpSpin_us);
  }
  void cancel(comm::Ticket ticket) noexcept override {
    if (ticket.id < kLate) inner().cancel(ticket);
  }

 private:
  using Make = std::function<comm::Ticket(Stream)>;

  void sleep_some_time() {
    if (!dice_.one_in(16)) return;
    const auto us = static_cast<std::int64_t>(dice_.next() % kHostSleep_us);
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
  Stream later(Stream stream) {
    sleep_some_time();
    if (!dice_.one_in(3)) return stream;
    const Stream slow = slow_stream->stream.get();
    slow_stream->reached.record(stream);
    slow_stream->reached.hold(slow);
    support::spin(slow, dice_.next(), kCallSpin_us);
    return slow;
  }
  /// All members decide alike, as they make the calls of a group in one order.
  comm::Ticket at_some_time(const comm::Call& call, Stream stream, Make make) {
    const bool waits = hash_combine(hash_combine(seed, key()), call.sequence) % 2 == 0;
    const std::int64_t number = std::ssize(made_) + std::ssize(waiting_);
    waiting_.push_back(std::move(make));
    while (!waits && !waiting_.empty()) make_next(stream);
    return {kLate + number, call.entry};
  }
  void make_next(Stream stream) {
    made_.push_back(waiting_.front()(later(stream)));
    waiting_.pop_front();
  }

  Dice dice_;
  std::vector<comm::Ticket> made_;  // of the inner channel, of the calls of rows so far
  std::deque<Make> waiting_;        // those that come after them
};

/// Ops begin late, and so do copies of numbers to the host.
class DelayedOps final : public OpWatcher {
 public:
  explicit DelayedOps(std::uint64_t seed) : dice_(seed) {}
  void run(Exec& ex, const OpInfo& op, const Capture::Call& call) override {
    if (dice_.one_in(8)) support::spin(ex.stream(), dice_.next(), kOpSpin_us);
    if (dice_.one_in(8)) support::spin(ex.backend<nn::HostCopyStream>().stream.get(), dice_.next(), kOpSpin_us);
    ex.execute(op.name, call, op.kind);
  }

 private:
  Dice dice_;
};

void train_delayed(comm::World& world, const config::RunPlan& plan, EchoRun& run) {
  support::load_spin();
  slow_stream.emplace();
  comm::WrappedWorld<DelayingChannel> delayed(world);
  DelayedOps ops(hash_combine(DelayingChannel::seed, static_cast<std::uint64_t>(world.rank())));
  support::train_with_clones(delayed, plan, run, &ops);
  slow_stream.reset();
}

using RunRanks = void (*)(int ranks, const std::function<void(comm::World&)>& body);
void share_gpus(int ranks, const std::function<void(comm::World&)>& body) {
  comm::run_peer_ranks(ranks, body, comm::InReach::tensors, comm::PeerCalls::all_in_turn);
}
void own_gpus(int ranks, const std::function<void(comm::World&)>& body) {
  comm::run_gpu_ranks(ranks, body, {.timeout_s = 60});
}

/// MEGALITH_DELAYED_STEPS: steps of a run with delays; 1000 take minutes.
Index delayed_steps() {
  const char* const asked = std::getenv("MEGALITH_DELAYED_STEPS");
  return asked == nullptr ? 6 : std::atol(asked);
}

void expect_no_other_bits(config::RunPlan plan, RunRanks run_ranks) {
  plan.train.steps = delayed_steps();
  const int seeds = plan.train.steps < 100 ? 2 : 1;
  for (const nn::EchoWeights weights : {nn::EchoWeights::keep, nn::EchoWeights::redispatch}) {
    SCOPED_TRACE(nn::kEchoWeightsNames[static_cast<std::size_t>(weights)]);
    plan.model.moe.echo.weights = weights;
    EchoRun want;
    run_ranks(plan.grid.world_size, [&](comm::World& world) { support::train_with_clones(world, plan, want); });
    EXPECT_GT(want.clones, 0);
    for (int seed = 1; seed <= seeds; ++seed) {
      SCOPED_TRACE(str("seed ", seed));
      DelayingChannel::seed = static_cast<std::uint64_t>(seed);
      EchoRun got;
      run_ranks(plan.grid.world_size, [&](comm::World& world) { train_delayed(world, plan, got); });
      expect_same_run(got, want);
    }
  }
}

constexpr MoeGrid kDelayedGrids[] = {{2, 1, 1, 2, 1}, {4, 1, 1, 4, 1}};

class SharedGpuEchoDelays : public ::testing::TestWithParam<MoeGrid> {
 protected:
  void SetUp() override {
    MEGALITH_NEEDS_GPUS(1);
    if (comm::ranks_are_processes()) GTEST_SKIP() << "these tests keep one record of all rank threads";
  }
};
INSTANTIATE_TEST_SUITE_P(RanksThatShareGpus, SharedGpuEchoDelays, ::testing::ValuesIn(kDelayedGrids),
                         [](const auto& test) { return test.param.name(); });

TEST_P(SharedGpuEchoDelays, ChangeNoBits) {
  expect_no_other_bits(support::plan_with_clones(GetParam(), "bf16", support::kClones), share_gpus);
}

class GpuEchoDelays : public ::testing::TestWithParam<MoeGrid> {
 protected:
  void SetUp() override {
    MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks);
    if (comm::ranks_are_processes()) GTEST_SKIP() << "these tests keep one record of all rank threads";
  }
};
INSTANTIATE_TEST_SUITE_P(All, GpuEchoDelays, ::testing::ValuesIn(kDelayedGrids),
                         [](const auto& test) { return test.param.name(); });

TEST_P(GpuEchoDelays, ChangeNoBits) {
  expect_no_other_bits(support::plan_with_clones(GetParam(), "bf16", support::kClones), own_gpus);
}

/// The delays of calls are kernels of the graph, and take other times in each launch.
TEST_P(GpuEchoDelays, ChangeNoBitsOfStepsFromAGraph) {
  config::RunPlan plan = support::plan_with_clones(GetParam(), "bf16", support::kClones);
  ASSERT_EQ(config::why_no_iteration(plan), "");
  plan.graphs.mode = capture::GraphMode::iteration;
  plan.graphs.optimizer = true;
  expect_no_other_bits(plan, own_gpus);
}

}  // namespace
}  // namespace megalith
