// Clones of experts, and room for fewer rows than can come, on GPUs: whole steps of ranks that share one GPU or a few,
// and of ranks with a GPU each.
#include <array>
#include <atomic>

#include <gmock/gmock.h>

#include "megalith/base/error.h"
#include "megalith/config/moe_rules.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/comm/peer_ranks.h"
#include "tests/comm/wrapped_world.h"
#include "tests/gpu/echo_run.h"
#include "tests/gpu/graph_records.h"
#include "tests/support/twin.h"

namespace megalith {
namespace {

using support::EchoRun;
using support::kClones;
using support::MoeGrid;
using support::plan_with_clones;
using support::relative_error;
using support::run_on_gpus;
using support::train_with_clones;

using RunOfPlan = std::unique_ptr<EchoRun> (*)(const config::RunPlan&);

std::unique_ptr<EchoRun> run_that_shares(const config::RunPlan& plan) {
  auto run = std::make_unique<EchoRun>();
  comm::run_peer_ranks(
      plan.grid.world_size, [&](comm::World& world) { train_with_clones(world, plan, *run); }, comm::InReach::tensors,
      comm::PeerCalls::all_in_turn);
  return run;
}

/// In the kernel's products a row's bits follow from the row and its weights alone. A loop's follow from the number of
/// rows, too. plan_of(precision, echo)
template <class PlanOf>
void expect_other_order_of_sums(const PlanOf& plan_of, RunOfPlan run_of) {
  for (const std::string precision : {"bf16", "fp32"}) {
    SCOPED_TRACE(precision);
    const bool is_kernel = ops::grouped_kernel_fit(Device::cuda, DType::bf16, 64, 64) == ops::GroupedKernelFit::fits;
    const bool same_bits = precision == "bf16" && is_kernel;
    const auto want = run_of(plan_of(precision, nn::EchoConfig{}));
    const auto got = run_of(plan_of(precision, kClones));
    EXPECT_EQ(want->clones, 0);
    EXPECT_GT(got->clones, 0);
    EXPECT_GT(got->moved, 0);
    if (same_bits) {
      EXPECT_EQ(got->losses[0], want->losses[0]);
    }
    EXPECT_LT(relative_error({got->losses[0]}, {want->losses[0]}), 1e-6);
    for (const auto& [name, values] : want->gradients.tensors()) {
      const std::vector<double>& own = got->gradients.at(name);
      if (same_bits && name.find(".experts.") == std::string::npos) {
        EXPECT_EQ(own, values) << name;
      } else {
        EXPECT_LT(relative_error(own, values), 1e-5) << name;
      }
    }
    EXPECT_LT(relative_error(got->losses, want->losses), precision == "fp32" ? 1e-5 : 4e-3);
  }
}

void expect_other_order_of_sums(const MoeGrid& grid, RunOfPlan run_of) {
  const auto plan_of = [&](const std::string& precision, const nn::EchoConfig& echo) {
    return plan_with_clones(grid, precision, echo);
  };
  expect_other_order_of_sums(plan_of, run_of);
}

/// All tokens choose the same two experts. These leave home whole, and all others are empty. Samples have 13 tokens.
void expect_hot_and_empty_experts(const MoeGrid& grid, RunOfPlan run_of) {
  const auto plan_of = [&](const std::string& precision, const nn::EchoConfig& echo) {
    constexpr support::MoeModel kHot{"Hot", [](config::RunConfig& c) {
                                       support::fit_grouped_kernel(c);
                                       c.model.seq_len = 13;
                                       c.moe.router_skew = 50;
                                       c.moe.aux_loss = 0;
                                     }};
    config::RunPlan plan = support::plan_on(Device::cuda, grid, kHot, precision);
    plan.train.steps = 4;
    plan.model.moe.dispatcher = nn::ExpertDispatcher::peer;
    plan.model.moe.echo = echo;
    return plan;
  };
  expect_other_order_of_sums(plan_of, run_of);
}

void expect_same_bits_however_clones_move(const MoeGrid& grid, RunOfPlan run_of) {
  struct Way {
    const char* name;
    void (*set)(nn::MoeConfig&);
  };
  using enum nn::EchoBackend;
  constexpr Way kWays[] = {{"redispatch", [](nn::MoeConfig& moe) { moe.echo.weights = nn::EchoWeights::redispatch; }},
                           {"without overlap", [](nn::MoeConfig& moe) { moe.echo.overlap = false; }},
                           {"collective", [](nn::MoeConfig& moe) { moe.echo.backend = collective; }},
                           {"host_sized", [](nn::MoeConfig& moe) { moe.echo.backend = host_sized; }},
                           {"all_to_all, redispatch", [](nn::MoeConfig& moe) {
                              moe.dispatcher = nn::ExpertDispatcher::all_to_all;
                              moe.echo.weights = nn::EchoWeights::redispatch;
                            }}};
  for (const char* precision : {"bf16", "fp32"}) {
    const auto want = run_of(plan_with_clones(grid, precision, kClones));
    EXPECT_GT(want->clones, 0);
    for (const Way& way : kWays) {
      SCOPED_TRACE(str(precision, ' ', way.name));
      config::RunPlan plan = plan_with_clones(grid, precision, kClones);
      way.set(plan.model.moe);
      expect_same_run(*run_of(plan), *want);
    }
  }
}

/// A second pass takes the plan of the first one.
void expect_same_bits_of_recomputed_layers(const MoeGrid& grid, RunOfPlan run_of) {
  const auto want = run_of(plan_with_clones(grid, "bf16", kClones));
  for (const nn::EchoWeights weights : {nn::EchoWeights::keep, nn::EchoWeights::redispatch}) {
    config::RunPlan plan = plan_with_clones(grid, "bf16", kClones);
    plan.model.moe.echo.weights = weights;
    plan.recompute.mode = nn::RecomputeMode::full;
    expect_same_run(*run_of(plan), *want);
  }
}

/// Ranks with less room than can come: steps that are run again have the bits of the worst case, also with clones, for
/// which a slot does not suffice. With one microbatch products overwrite gradients, and leave the squares for their
/// norm; with several the last ones add to them. Stages take as many microbatches as there are of them, and twice that.
void expect_reruns_with_the_bits_of_the_worst_case(const MoeGrid& grid, RunOfPlan run_of) {
  for (const Index slots : {0, 1}) {
    for (const Index microbatches : {1, 2}) {
      for (const std::string precision : {"bf16", "fp32"}) {
        SCOPED_TRACE(str(precision, ", slots ", slots, ", microbatches ", microbatches));
        const config::RunPlan plan =
            support::plan_of_small_budget(Device::cuda, grid, precision, slots, microbatches * grid.pp);
        config::RunPlan worst = plan;
        worst.model.moe.rank_capacity_factor = {};
        const auto want = run_of(worst);
        EXPECT_EQ(want->reruns, 0);
        EXPECT_EQ(want->clones > 0, slots > 0);
        const auto got = run_of(plan);
        EXPECT_GT(got->reruns, 0);
        expect_same_run(*got, *want);
      }
    }
  }
}

/// ep 2 and 4; tp 2 with replicas and slices; stages, and two chunks of each.
const MoeGrid kEchoGrids[] = {{2, 1, 1, 2, 1}, {4, 1, 1, 4, 1}, {4, 2, 1, 2, 1},
                              {4, 2, 1, 2, 2}, {4, 1, 2, 2, 1}, {4, 1, 2, 2, 1, 2}};

// Nothing here runs from graphs. Each kernel of a call between ranks waits for those of the others. Ranks that share a
// GPU share its queues and the lock of its driver, so their hosts make each call in turn and wait for its end
// (PeerCalls::all_in_turn). A graph holds many calls, between which no host can wait.
class SharedGpuEcho : public ::testing::TestWithParam<MoeGrid> {
 protected:
  void SetUp() override {
    MEGALITH_NEEDS_GPUS(1);
    if (comm::ranks_are_processes()) GTEST_SKIP() << "these tests keep one record of all rank threads";
  }
};
INSTANTIATE_TEST_SUITE_P(RanksThatShareGpus, SharedGpuEcho, ::testing::ValuesIn(kEchoGrids),
                         [](const auto& test) { return test.param.name(); });

TEST_P(SharedGpuEcho, ChangesNothingButTheOrderOfExpertsSums) {
  expect_other_order_of_sums(GetParam(), run_that_shares);
}
TEST_P(SharedGpuEcho, HotAndEmptyExpertsTooChangeNothingElse) {
  expect_hot_and_empty_experts(GetParam(), run_that_shares);
}
TEST_P(SharedGpuEcho, HasTheSameBitsHoweverClonesMove) {
  expect_same_bits_however_clones_move(GetParam(), run_that_shares);
}
TEST_P(SharedGpuEcho, HasTheSameBitsWhereLayersAreRecomputed) {
  expect_same_bits_of_recomputed_layers(GetParam(), run_that_shares);
}

TEST_P(SharedGpuEcho, StepsThatLackRoomAreRunAgain) {
  expect_reruns_with_the_bits_of_the_worst_case(GetParam(), run_that_shares);
}

std::atomic<bool> rank_1_misreads = false;

/// From then on rank 1 sees other choices than the other ranks.
class MisreadingOnGpu final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  comm::Ticket all_gather(const comm::Call& call, const void* in, void* out, Stream stream) override {
    const comm::Ticket ticket = inner().all_gather(call, in, out, stream);
    constexpr Index kFalse = 16;  // choices, which become 0
    if (name() == "etp-ep" && call.dtype == DType::i32 && world_rank() == 1 && rank_1_misreads)
      device::fill_bytes(Device::cuda, out, 0, kFalse * size_of(DType::i32), stream);  // the gather is complete
    return ticket;
  }
};

/// All ranks learn of it when the step ends, and no parameter has changed.
TEST(SharedGpuEchoPlans, RanksWithAnotherPlanAreNamed) {
  MEGALITH_NEEDS_GPUS(1);
  if (comm::ranks_are_processes()) GTEST_SKIP() << "these tests keep one record of all rank threads";
  for (const Index every : {1, 2}) {
    nn::EchoConfig echo = kClones;
    echo.check_plan = every;
    const config::RunPlan plan = plan_with_clones({4, 1, 1, 4, 1}, "bf16", echo);
    rank_1_misreads = false;
    std::array<std::string, 4> errors;
    std::array<Index, 4> updates{};
    const auto rank = [&](comm::World& world) {
      comm::WrappedWorld<MisreadingOnGpu> wrapped(world);
      train::Engine engine(wrapped, plan);
      engine.allocate();
      const support::HashedBatches source(plan.model.vocab_size);
      const auto me = static_cast<std::size_t>(world.rank());
      try {
        for (Index step = 0; step < 3; ++step) {
          if (world.rank() == 1) rank_1_misreads = step == 2;
          engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
        }
      } catch (const CollectiveError& error) {
        errors[me] = error.what();
      }
      updates[me] = engine.optimizer_state().updates;
    };
    comm::run_peer_ranks(4, rank, comm::InReach::tensors, comm::PeerCalls::all_in_turn);
    for (const std::string& error : errors) {
      EXPECT_THAT(error,
                  ::testing::ContainsRegex(
                      "group etp-ep, chunk 0, microbatch 0, layer 0: the plan of clones differs on ranks 1 "
                      "\\([0-9a-f]+\\); the plan of most ranks is [0-9a-f]+: .* Parameters stay those of step 2"));
    }
    EXPECT_EQ(updates, (std::array<Index, 4>{2, 2, 2, 2}));
  }
}

class GpuEchoGrid : public ::testing::TestWithParam<MoeGrid> {
 protected:
  void SetUp() override {
    MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks);
    if (comm::ranks_are_processes()) GTEST_SKIP() << "these tests keep one record of all rank threads";
  }
};
INSTANTIATE_TEST_SUITE_P(All, GpuEchoGrid, ::testing::ValuesIn(kEchoGrids),
                         [](const auto& test) { return test.param.name(); });

TEST_P(GpuEchoGrid, ChangesNothingButTheOrderOfExpertsSums) { expect_other_order_of_sums(GetParam(), run_on_gpus); }
TEST_P(GpuEchoGrid, HotAndEmptyExpertsTooChangeNothingElse) { expect_hot_and_empty_experts(GetParam(), run_on_gpus); }
TEST_P(GpuEchoGrid, HasTheSameBitsHoweverClonesMove) { expect_same_bits_however_clones_move(GetParam(), run_on_gpus); }
TEST_P(GpuEchoGrid, HasTheSameBitsWhereLayersAreRecomputed) {
  expect_same_bits_of_recomputed_layers(GetParam(), run_on_gpus);
}

TEST_P(GpuEchoGrid, StepsThatLackRoomAreRunAgain) {
  expect_reruns_with_the_bits_of_the_worst_case(GetParam(), run_on_gpus);
}

/// A GPU finds within a graph that a rank lacks room. That step and the one behind it are run again, eagerly.
TEST_P(GpuEchoGrid, StepsFromAGraphThatLackRoomAreRunAgain) {
  for (const Index slots : {0, 1}) {
    SCOPED_TRACE(str("slots ", slots));
    config::RunPlan plan = support::plan_of_small_budget(Device::cuda, GetParam(), "bf16", slots, 2 * GetParam().pp);
    config::RunPlan worst = plan;
    worst.model.moe.rank_capacity_factor = {};
    const auto want = run_on_gpus(worst);
    plan.graphs.mode = capture::GraphMode::iteration;
    plan.graphs.optimizer = true;
    ASSERT_EQ(config::why_no_iteration(plan), "");
    const auto got = run_on_gpus(plan);
    EXPECT_GT(got->reruns, 0);
    expect_same_run(*got, *want);
  }
}

/// A rank has one graph for training and one for evaluation, of work of the GPU alone: no host is called back, no
/// memory is taken or given back.
void expect_nodes_of_gpu_alone(const support::GraphRecords& records, int ranks) {
  const std::vector<support::GraphRecords::Kinds> graphs = records.graphs();
  EXPECT_EQ(graphs.size(), static_cast<std::size_t>(2 * ranks));
  for (const support::GraphRecords::Kinds& kinds : graphs) {
    std::string text;
    for (const auto& [kind, count] : kinds) text += str(' ', kind, ' ', count);
    SCOPED_TRACE(text);
    EXPECT_GT(kinds.at("kernel"), 0);
    for (const char* kind : {"host", "memory allocation", "memory free"}) EXPECT_FALSE(kinds.contains(kind)) << kind;
  }
}

/// Plans differ from launch to launch.
TEST_P(GpuEchoGrid, GraphsOfStepsHaveTheBitsOfEagerSteps) {
  nn::EchoConfig echo = kClones;
  for (const nn::EchoWeights weights : {nn::EchoWeights::keep, nn::EchoWeights::redispatch}) {
    for (const nn::EchoBackend backend : {nn::EchoBackend::peer, nn::EchoBackend::collective}) {
      echo.weights = weights;
      echo.backend = backend;
      config::RunPlan plan = plan_with_clones(GetParam(), "bf16", echo);
      plan.train.steps = 12;
      ASSERT_EQ(config::why_no_iteration(plan), "");
      const auto want = run_on_gpus(plan);
      EXPECT_GT(want->clones, 0);
      plan.graphs.mode = capture::GraphMode::iteration;
      plan.graphs.optimizer = true;
      const support::GraphRecords records;
      const auto got = run_on_gpus(plan);
      expect_nodes_of_gpu_alone(records, plan.grid.world_size);
      EXPECT_EQ(got->losses, want->losses);
      EXPECT_EQ(got->evaluations, want->evaluations);
      EXPECT_EQ(got->evaluated, want->evaluated);
      EXPECT_EQ(got->parameters.tensors(), want->parameters.tensors());
    }
  }
}

}  // namespace
}  // namespace megalith
