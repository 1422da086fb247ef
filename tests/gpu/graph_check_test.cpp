// graphs.check on GPUs, and what it is made of: what differs from an eager run is named.
#include <optional>

#include <gmock/gmock.h>

#include "megalith/capture/memory_copy.h"
#include "megalith/ops/elementwise.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/gpu/gpu_plan.h"
#include "tests/support/twin.h"
#include "tests/train/differing_steps.h"

namespace megalith {
namespace {

using support::Grid;
using support::kMeddled;

config::RunPlan plan_of(const Grid& grid, const support::GraphWay& way) {
  config::RunPlan plan = support::with_graphs(support::gpu_plan(grid, "bf16", 8), way, support::kCheckWarmup);
  plan.graphs.check_steps = 8;
  return plan;
}

std::string error_of(const config::RunPlan& plan, const support::MeddleWithStep& meddle,
                     const model::BatchSource& source) {
  return support::error_of(comm::run_gpu_ranks, plan, meddle, source);
}

class GpuDifferingSteps : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(All, GpuDifferingSteps, ::testing::Values(Grid{}, Grid{.tp = 2}, Grid{.pp = 2}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(GpuDifferingSteps, AreNamedByTheOpWhoseTensorLiesElsewhere) {
  const Grid grid = GetParam();
  MEGALITH_NEEDS_GPUS(grid.ranks());
  const int last = grid.ranks() - 1;  // of the last stage
  for (const support::GraphWay& way : support::kGraphWays) {
    const config::RunPlan plan = plan_of(grid, way);
    const auto meddle = [&](train::Engine& engine, int rank, Index step) {
      if (rank == last && step == kMeddled)
        support::swap_views(engine, "layers.5.norm1.weight", "layers.5.norm2.weight", &Param::value);
    };
    const std::string error = error_of(plan, meddle, support::HashedBatches(plan.model.vocab_size));
    EXPECT_TRUE(error.starts_with(
        str("rank ", last, ": step ", kMeddled + 1, ": [graph] training, chunk 0, microbatch 0, layer 5, op ")))
        << way.name << ": " << error;
    EXPECT_NE(error.find("norm): a tensor of shape [256] lies at another address than when captured"),
              std::string::npos)
        << way.name << ": " << error;
  }
}

TEST_P(GpuDifferingSteps, AreNamedByTheFirstResultThatDiffers) {
  const Grid grid = GetParam();
  MEGALITH_NEEDS_GPUS(grid.ranks());
  const int last = grid.ranks() - 1;               // of the last stage
  static constexpr std::uint16_t kOther = 0x40e0;  // 7 in bf16
  for (const support::GraphWay& way : {support::kLayers, support::kLayersPerSlot}) {
    const config::RunPlan plan = plan_of(grid, way);
    const support::MeddlingBatches source(plan.model.vocab_size);
    const auto meddle = [&](train::Engine& engine, int rank, Index step) {
      if (rank != last || step != kMeddled) return;
      source.expect(support::last_of_eager_run(plan), [&](std::span<std::int32_t>) {
        engine.exec().copy(engine.stage().params().at("layers.5.norm1.weight").value.raw(), &kOther, sizeof kOther);
      });
    };
    const std::string error = error_of(plan, meddle, source);
    EXPECT_TRUE(error.starts_with(str("rank ", last, ": [graphs] step ", kMeddled + 1, ": result of "))) << error;
    EXPECT_NE(error.find(str("norm, chunk 0, microbatch ", plan.train.global_batch / plan.train.micro_batch - 1,
                             ", layer 5 ")),
              std::string::npos)
        << way.name << ": " << error;
  }
}

TEST_P(GpuDifferingSteps, AreNamedByTheGradientWhereResultsAgree) {
  const Grid grid = GetParam();
  MEGALITH_NEEDS_GPUS(grid.ranks());
  const config::RunPlan plan = plan_of(grid, support::kLayers);
  const support::MeddlingBatches source(plan.model.vocab_size);
  static constexpr float kOther = 7;
  const auto meddle = [&](train::Engine& engine, int rank, Index step) {
    if (rank != 0 || step != kMeddled) return;
    source.expect(support::last_of_eager_run(plan), [&](std::span<std::int32_t>) {
      engine.exec().copy(engine.stage().params().at("layers.1.norm2.weight").grad.raw(), &kOther, sizeof kOther);
    });
  };
  // While the last microbatch goes forward through the first of two stages, the one before is next in the backward
  // pass.
  const Index last = plan.train.global_batch / plan.train.micro_batch - 1;
  const std::string error = error_of(plan, meddle, source);
  EXPECT_TRUE(error.starts_with(str("rank 0: [graphs] step ", kMeddled + 1,
                                    ": gradient of layers.1.norm2.weight, chunk 0, microbatch ",
                                    grid.pp == 1 ? last : last - 1, ", layer 1 is another")))
      << error;
}

/// One GPU's memory, and a graph of two ops on it.
class GpuGraph : public ::testing::Test {
 protected:
  void SetUp() override {
    MEGALITH_NEEDS_GPUS(1);
    ex_.emplace(Device::cuda);
    ledger_.emplace(Device::cuda);
    memory_ = ledger_->take("parameters", 1024);
    ops::fill(*ex_, numbers(0), 2);
    ops::fill(*ex_, numbers(1), 3);
  }
  Tensor numbers(Index place) { return memory_.view({8}, DType::f32, place * 32); }
  Graph captured(double factor) {
    Capture capture("training", ledger_->memory());
    Graph graph = ex_->captured(capture, [&] {
      ops::scale(*ex_, numbers(0), factor);
      ops::scale(*ex_, numbers(1), 2);
    });
    graph.prepare(*ex_);
    return graph;
  }
  /// What is reported of an eager run beside the graph.
  template <class Ops>
  std::string beside(const Graph& graph, Ops&& ops) {
    try {
      ex_->run_beside(graph, "training", ops);
    } catch (const InternalError& error) {
      return error.what();
    }
    return "";
  }

  std::optional<Exec> ex_;
  std::optional<MemoryLedger> ledger_;
  Buffer memory_;
};

TEST_F(GpuGraph, AnEagerRunBesideItThatTakesItsPathPassesAndRunsOnce) {
  const Graph graph = captured(2);
  EXPECT_EQ(beside(graph,
                   [&] {
                     ops::scale(*ex_, numbers(0), 2);
                     ops::scale(*ex_, numbers(1), 2);
                   }),
            "");
  EXPECT_THAT(support::values_on(*ex_, numbers(0)), ::testing::Each(4));
  EXPECT_THAT(support::values_on(*ex_, numbers(1)), ::testing::Each(6));
}

TEST_F(GpuGraph, AnEagerRunBesideItThatLeavesItsPathIsRefused) {
  const Graph graph = captured(2);
  EXPECT_EQ(beside(graph, [&] { ops::scale(*ex_, numbers(1), 2); }),
            "[graph] training, op 1 (scale): a tensor of shape [8] lies at another address than when captured");
  EXPECT_EQ(beside(graph, [&] { ops::scale(*ex_, numbers(0).rows(0, 4), 2); }),
            "[graph] training, op 1 (scale): a tensor of shape [4], captured was [8]");
  EXPECT_EQ(beside(graph, [&] { ops::scale(*ex_, numbers(0), 2); }),
            "[graph] training, op 2 (scale): the graph has it, the host no longer submits it: a graph keeps the path "
            "of its capture");
  EXPECT_EQ(beside(graph, [&] { ops::fill(*ex_, numbers(0), 2); }),
            "[graph] training, op 1 (fill): the graph has scale there: a graph keeps the path of its capture, so what "
            "the host runs may not follow data");
}

TEST_F(GpuGraph, AValueThatItTookByValueShowsInMemory) {
  const Graph graph = captured(2);
  capture::MemoryCopy copy(Device::cuda, ledger_->blocks());
  for (const double now : {2.0, 0.5}) {
    copy.keep(*ex_);
    graph.launch(*ex_);
    copy.exchange(*ex_);
    EXPECT_EQ(beside(graph,
                     [&] {
                       ops::scale(*ex_, numbers(0), now);
                       ops::scale(*ex_, numbers(1), 2);
                     }),
              "");
    const auto found = copy.first_difference(*ex_, [&] {
      return MemoryNames{{static_cast<const std::byte*>(numbers(0).raw()), 32, {StepOrder::Part::parameters, 0}, "w"}};
    });
    EXPECT_EQ(found ? found->text.substr(0, found->text.find(" at")) : "none", now == 2 ? "none" : "w");
  }
  EXPECT_THAT(support::values_on(*ex_, numbers(0)), ::testing::Each(2)) << "2 x 2 x 0.5: the eager results stay";
}

}  // namespace
}  // namespace megalith
