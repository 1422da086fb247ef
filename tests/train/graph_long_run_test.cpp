// A hundred steps from graphs, against eager ones, with everything that a run leaves behind; and fp16 steps of
// which some are skipped.
#include <cstring>

#include "megalith/ops/step_end.h"

#include "tests/train/graph_run.h"
#include "tests/train/graph_ways.h"

namespace megalith {
namespace {

using capture::GraphMode;
using support::Grid;

constexpr Index kSteps = 100, kWarmup = 3;

/// A run, and the state of each rank's optimizer at its end. Random numbers have no state beside the step.
struct LongRun {
  std::unique_ptr<support::GraphRun> run;
  std::vector<std::vector<std::byte>> states;
};

LongRun trained(const config::RunPlan& plan) {
  LongRun all{nullptr, std::vector<std::vector<std::byte>>(static_cast<std::size_t>(plan.grid.world_size))};
  all.run = support::run_of(plan, [&](train::Engine& engine, Index) {
    std::vector<std::byte>& state = all.states[static_cast<std::size_t>(engine.world().rank())];
    const auto add = [&state](const void* data, Index bytes) {
      const auto* begin = static_cast<const std::byte*>(data);
      state.insert(state.end(), begin, begin + bytes);
    };
    const ParamBuffer& params = engine.stage().params().dense();
    for (const Tensor& tensor :
         {engine.optimizers().front().m(), engine.optimizers().front().v(), params.master_memory()})
      add(tensor.raw(), tensor.bytes());
    for (const OwnRange& range : params.own_ranges()) {  // the other halves of masters
      const Tensor copies = range.of_whole(params.values());
      add(copies.raw(), copies.bytes());
    }
    const ops::OptimizerState scalars = engine.optimizer_state();
    add(&scalars, sizeof scalars);
    EXPECT_EQ(engine.captured_graphs().stats.graphs > 0, plan.graphs.mode != GraphMode::none);
  });
  return all;
}

void expect_same(const LongRun& got, const LongRun& want) {
  support::expect_same(*got.run, *want.run);
  EXPECT_TRUE(got.states == want.states) << "moments, masters or the optimizer's numbers";
}

class LongGraphRun : public ::testing::TestWithParam<std::tuple<Grid, double>> {};

TEST_P(LongGraphRun, AHundredStepsLeaveTheBitsOfEagerOnes) {
  const auto& [grid, dropout] = GetParam();
  config::RunPlan plan = support::small_plan(grid, "bf16", kSteps);
  plan.model.dropout = plan.model.attention_dropout = plan.model.embedding_dropout = dropout;
  const LongRun want = trained(plan);
  ASSERT_EQ(want.run->record.norms.size(), static_cast<std::size_t>(kSteps));
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    expect_same(trained(support::with_graphs(plan, way, kWarmup)), want);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, LongGraphRun,
    ::testing::Combine(::testing::Values(Grid{.tp = 2, .sequence_parallel = nn::SequenceParallel::on},
                                         Grid{.pp = 2, .chunks = 2}),
                       ::testing::Values(0.0, 0.1)),
    [](const auto& test) {
      return std::get<0>(test.param).name() + (std::get<1>(test.param) > 0 ? "_dropout" : "_no_dropout");
    });

TEST(LongGraphRuns, StepsThatAreSkippedLeaveTheBitsOfEagerOnes) {
  config::RunPlan plan = support::small_plan({.tp = 2, .pp = 2}, "fp16", 20);
  plan.train.scaling = {.initial = 0x1p26, .smallest = 1, .growth_interval = 2};
  const LongRun want = trained(plan);
  ops::OptimizerState end;
  std::memcpy(&end, want.states[0].data() + want.states[0].size() - sizeof end, sizeof end);
  EXPECT_LT(end.updates, 20u - 3u) << "some steps are skipped, also once graphs are launched";
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    expect_same(trained(support::with_graphs(plan, way, kWarmup)), want);
  }
}

}  // namespace
}  // namespace megalith
