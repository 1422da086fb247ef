// Ranks that come late to their calls, each at times of its own: nothing of a step with experts or clones may depend on
// who comes first.
#include <chrono>
#include <random>
#include <thread>

#include "tests/comm/wrapped_world.h"
#include "tests/train/moe_run.h"

namespace megalith {
namespace {

using comm::Call;
using comm::ForwardingChannel;
using comm::Ticket;
using support::MoeGrid;
using support::RunRecord;

/// Before one call or wait in eight it stands still for up to 0.3 ms. A rank has its own times in each group.
class DelayedChannel final : public ForwardingChannel {
 public:
  explicit DelayedChannel(const comm::Group& group)
      : ForwardingChannel(group),
        random_(static_cast<std::uint32_t>(17 * group.world_ranks()[static_cast<std::size_t>(group.rank())] + 1 +
                                           group.name().size())) {}
  Ticket all_reduce(const Call& call, void* data, Stream stream) override {
    delay();
    return ForwardingChannel::all_reduce(call, data, stream);
  }
  Ticket reduce_scatter(const Call& call, const void* in, void* out, Stream stream) override {
    delay();
    return ForwardingChannel::reduce_scatter(call, in, out, stream);
  }
  Ticket all_gather(const Call& call, const void* in, void* out, Stream stream) override {
    delay();
    return ForwardingChannel::all_gather(call, in, out, stream);
  }
  Ticket all_to_all(const Call& call, const comm::Parts<const void>& in, const comm::Parts<void>& out,
                    Stream stream) override {
    delay();
    return ForwardingChannel::all_to_all(call, in, out, stream);
  }
  Ticket gather_rows(const Call& call, const comm::GatherRows& args, Stream stream) override {
    delay();
    return ForwardingChannel::gather_rows(call, args, stream);
  }
  Ticket gather_sum_rows(const Call& call, const comm::GatherSumRows& args, Stream stream) override {
    delay();
    return ForwardingChannel::gather_sum_rows(call, args, stream);
  }
  Ticket post_send(const Call& call, const void* data, Stream stream) override {
    delay();
    return ForwardingChannel::post_send(call, data, stream);
  }
  void wait(Ticket ticket, Stream stream) override {
    delay();
    ForwardingChannel::wait(ticket, stream);
  }

 private:
  void delay() {
    const std::uint32_t number = random_();
    if (number % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(number / 8 % 300));
  }
  std::mt19937 random_;
};

struct DelayedCase {
  MoeGrid grid;
  Index slots;
  capture::GraphMode mode;
  Index steps;
  std::string name() const {
    return str(grid.name(), slots > 0 ? "_echo" : "", mode == capture::GraphMode::none ? "" : "_graph");
  }
};

config::RunPlan delayed_plan(const DelayedCase& trained) {
  const support::MoeModel skewed{"Skewed", [](config::RunConfig& c) {
                                   c.moe.router_skew = 0.04;
                                   c.model.num_layers = 2;
                                   c.model.seq_len = 8;
                                   c.train.micro_batch = 1;
                                   c.train.global_batch = 8;
                                 }};
  config::RunConfig c = support::moe_config(trained.grid, skewed, "fp32", trained.steps);
  c.moe.dispatcher = "peer";
  if (trained.slots > 0) {
    c.moe.echo.slots = trained.slots;
    c.moe.echo.min_pairs = 0;
    c.moe.echo.weights = "redispatch";
  }
  config::RunPlan plan = config::resolve(c);
  plan.graphs.mode = trained.mode;
  plan.graphs.warmup_steps = 2;
  return plan;
}

class DelayedRanks : public ::testing::TestWithParam<DelayedCase> {};

TEST_P(DelayedRanks, ChangeNoBits) {
  const config::RunPlan plan = delayed_plan(GetParam());
  RunRecord want, late;
  support::run_moe(plan, want);
  const auto source = support::batches_of(support::MoeText::hashed, plan.model.vocab_size);
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    comm::WrappedWorld<DelayedChannel> delayed(world);
    support::train_rank(delayed, plan, *source, late);
  });
  EXPECT_EQ(late.losses, want.losses);
  EXPECT_EQ(late.norms, want.norms);
  EXPECT_EQ(late.gradients.tensors(), want.gradients.tensors());
  EXPECT_EQ(late.parameters.tensors(), want.parameters.tensors());
}

INSTANTIATE_TEST_SUITE_P(Grids, DelayedRanks,
                         ::testing::Values(DelayedCase{{4, 1, 1, 4, 1}, 0, capture::GraphMode::none, 1000},
                                           DelayedCase{{4, 1, 1, 4, 1}, 3, capture::GraphMode::none, 1000},
                                           DelayedCase{{4, 1, 1, 4, 1}, 3, capture::GraphMode::iteration, 300},
                                           DelayedCase{{4, 2, 1, 2, 1}, 3, capture::GraphMode::none, 300},
                                           DelayedCase{{4, 2, 1, 2, 2}, 3, capture::GraphMode::none, 300},
                                           DelayedCase{{4, 1, 2, 2, 1}, 3, capture::GraphMode::none, 300}),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace megalith
