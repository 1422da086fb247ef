// What a step reports of clones of experts (docs/echo.md).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/clock.h"

#include "tests/comm/wrapped_world.h"
#include "tests/train/echo_run.h"

namespace megalith {
namespace {

using support::echo_config;
using support::EchoWay;
using support::kSkewed;
using support::MoeGrid;

/// Loads and clones of a step, of layers' totals over all ranks.
TEST(EchoMetrics, ReportsLoadsBeforeAndAfter) {
  for (const MoeGrid& grid : {MoeGrid{2, 1, 1, 2, 1}, MoeGrid{4, 2, 1, 2, 2}, MoeGrid{4, 2, 1, 2, 1}}) {
    SCOPED_TRACE(grid.name());
    config::RunConfig recipe = echo_config(grid, kSkewed, {}, 1);
    recipe.moe.pattern = "dm";
    const config::RunPlan plan = config::resolve(recipe);
    train::StepReport report;
    comm::run_ranks(grid.ranks, [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      const train::StepReport one = engine.step(support::HashedBatches(plan.model.vocab_size), {}, train::Stop::no);
      if (world.rank() == 0) report = one;
    });
    ASSERT_EQ(report.moe.layers.size(), 2u);
    for (const train::ExpertLoad& load : report.moe.layers) {
      ASSERT_TRUE(load.echo.has_value());
      EXPECT_GT(load.echo->before, 1.1);
      EXPECT_GE(load.echo->after, 1.0);
      EXPECT_LT(load.echo->after, 1.02) << "three slots suffice";
      EXPECT_GT(load.echo->clones, 0);
      EXPECT_GT(load.echo->moved, load.echo->clones);
      EXPECT_LT(load.echo->moved, load.choices);
      EXPECT_EQ(load.echo->dropped, 0);
      EXPECT_GE(load.echo->wanted, 1);
      EXPECT_LE(load.echo->wanted, 3);
      // Weights and gradients of [2 F, H] and [H, F] in f64.
      const Index numbers = 3 * 12 * plan.model.hidden_size;
      EXPECT_EQ(load.echo->bytes, static_cast<double>(load.echo->clones * numbers * 16));
      EXPECT_GT(load.echo->exposed_us, 0);
    }
    EXPECT_THAT(report.moe.json(), ::testing::HasSubstr("\"echo\":{\"before\":"));
    const auto ranks = report.moe.worst_ranks();
    ASSERT_TRUE(ranks.has_value());
    double before = 0, after = 0;
    for (const train::ExpertLoad& load : report.moe.layers) {
      before = std::max(before, load.echo->before);
      after = std::max(after, load.echo->after);
    }
    EXPECT_EQ(ranks->before, before);
    EXPECT_EQ(ranks->after, after);
  }
}

/// Counts the rows of clones that come to this rank.
class CountedClones final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  static inline std::atomic<Index> weights = 0, grads = 0;  ///< calls
  comm::Ticket gather_rows(const comm::Call& call, const comm::GatherRows& args, Stream stream) override {
    if (name() == "ep") ++weights;
    return inner().gather_rows(call, args, stream);
  }
  comm::Ticket gather_sum_rows(const comm::Call& call, const comm::GatherSumRows& args, Stream stream) override {
    if (name() == "ep") ++grads;
    return inner().gather_sum_rows(call, args, stream);
  }
};

/// Weights are sent for each forward pass and where backward has them again, gradients once; each in two matrices.
TEST(EchoMetrics, BytesAreThoseOfAllTransfers) {
  struct Way {
    const char* weights;
    nn::RecomputeConfig recompute;
    Index times;                   ///< that weights are sent, over the two layers
    std::pair<Index, Index> each;  ///< of each layer
  };
  using enum nn::RecomputeMode;
  const nn::RecomputeConfig block{.mode = full, .method = nn::RecomputeMethod::block};
  for (const auto& [weights, recompute, times, each] : {Way{"keep", {}, 2, {1, 1}},
                                                        {"redispatch", {}, 4, {2, 2}},
                                                        {"keep", {.mode = full}, 4, {2, 2}},
                                                        {"redispatch", {.mode = full}, 6, {3, 3}},
                                                        {"keep", block, 3, {2, 1}}}) {
    SCOPED_TRACE(str(weights, ", recompute ", static_cast<int>(recompute.mode), ", times ", times));
    config::RunConfig recipe = echo_config({2, 1, 1, 2, 1}, kSkewed, {.weights = weights}, 1);
    recipe.model.num_layers = 2;
    config::RunPlan plan = config::resolve(recipe);
    plan.recompute = recompute;
    ASSERT_EQ(plan.model.num_moe_layers(), 2);
    CountedClones::weights = CountedClones::grads = 0;
    train::StepReport report;
    comm::run_ranks(2, [&](comm::World& world) {
      comm::WrappedWorld<CountedClones> counted(world);
      train::Engine engine(counted, plan);
      engine.allocate();
      const train::StepReport one = engine.step(support::HashedBatches(plan.model.vocab_size), {}, train::Stop::no);
      if (world.rank() == 0) report = one;
    });
    EXPECT_GT(CountedClones::grads, 0);
    EXPECT_EQ(2 * CountedClones::weights, times * CountedClones::grads);
    const auto matrices = static_cast<double>(3 * 12 * plan.model.hidden_size * 8);
    ASSERT_EQ(report.moe.layers.size(), 2u);
    const auto expect = [&](const train::ExpertLoad& load, Index sent) {
      EXPECT_EQ(load.echo->bytes, static_cast<double>(load.echo->clones * (sent + 1)) * matrices);
    };
    expect(report.moe.layers[0], each.first);
    expect(report.moe.layers[1], each.second);
  }
}

constexpr auto kTransfer = std::chrono::milliseconds(2), kWait = std::chrono::milliseconds(3);

/// Transfers of clones take rank 1 at least kTransfer where they start, and kWait where it waits for them.
class SlowClones final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  comm::Ticket gather_rows(const comm::Call& call, const comm::GatherRows& args, Stream stream) override {
    return slowly(inner().gather_rows(call, args, stream), call);
  }
  comm::Ticket gather_sum_rows(const comm::Call& call, const comm::GatherSumRows& args, Stream stream) override {
    return slowly(inner().gather_sum_rows(call, args, stream), call);
  }
  void wait(comm::Ticket ticket, Stream stream) override {
    if (ticket.id < kLate) return inner().wait(ticket, stream);
    std::this_thread::sleep_for(kWait);
  }
  void cancel(comm::Ticket ticket) noexcept override {
    if (ticket.id < kLate) inner().cancel(ticket);
  }

 private:
  comm::Ticket slowly(comm::Ticket ticket, const comm::Call& call) const {
    if (name() != "ep" || world_rank() != 1) return ticket;
    EXPECT_LT(ticket.id, 0) << "on CPUs the call is complete";
    std::this_thread::sleep_for(kTransfer);
    return {kLate, call.entry};
  }
};

/// Of the layers of a second step, and how long that took, in us.
struct Exposed {
  double least = 0, sum = 0, step = 0;
};
Exposed exposed_us(const config::RunPlan& plan) {
  Exposed exposed;
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    comm::WrappedWorld<SlowClones> slow(world);
    train::Engine engine(slow, plan);
    engine.allocate();
    const support::HashedBatches source(plan.model.vocab_size);
    engine.step(source, {}, train::Stop::no);
    const double begin_s = monotonic_s();
    const train::StepReport step = engine.step(source, {1, plan.train.global_batch}, train::Stop::no);
    if (world.rank() != 0) return;
    exposed = {.least = std::numeric_limits<double>::infinity(), .step = (monotonic_s() - begin_s) * 1e6};
    for (const train::ExpertLoad& load : step.moe.layers) {
      exposed.least = std::min(exposed.least, load.echo->exposed_us);
      exposed.sum += load.echo->exposed_us;
    }
  });
  return exposed;
}

/// In each layer and microbatch there are transfers of two matrices, of weights and of gradients, and those of weights
/// sent again. A step has its own alone, of the rank that waits longest.
TEST(EchoMetrics, TransfersAreExposedWhereTheyKeepARankWaiting) {
  struct Way {
    EchoWay way;
    Index transfers;
    nn::RecomputeMode recompute = nn::RecomputeMode::none;
  };
  for (const auto& [way, transfers, recompute] :
       {Way{{}, 4}, {{.overlap = false}, 4}, {{.weights = "redispatch"}, 6}, {{}, 6, nn::RecomputeMode::full}}) {
    SCOPED_TRACE(str(way.name(), ", recompute ", static_cast<int>(recompute)));
    config::RunPlan plan = config::resolve(echo_config({2, 1, 1, 2, 1}, kSkewed, way, 2));
    plan.recompute.mode = recompute;
    const Index microbatches = plan.train.global_batch / (plan.train.micro_batch * 2);
    const double slept_us =
        std::chrono::duration<double, std::micro>(kTransfer + kWait).count() * static_cast<double>(transfers);
    const Exposed exposed = exposed_us(plan);
    EXPECT_GE(exposed.least, slept_us * static_cast<double>(microbatches));
    // Transfers of two layers are not exposed at one time. Those of the step before would be as many again.
    EXPECT_LE(exposed.sum, 1.2 * exposed.step);
  }
}

}  // namespace
}  // namespace megalith
