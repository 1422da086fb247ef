// Grids of GPUs: one GPU's numbers, and the same bits whatever a step is made of (a sharded optimizer, graphs, a
// checkpoint in the middle).
#include <map>
#include <memory>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/gpu_ranks.h"
#include "tests/gpu/collect.h"
#include "tests/gpu/gpu_plan.h"
#include "tests/gpu/saved_gpu_run.h"
#include "tests/support/twin.h"

namespace megalith {
namespace {

using support::expect_same;
using support::gpu_plan;
using support::GraphWay;
using support::Grid;
using support::relative_error;
using support::RunRecord;
using support::SavedRun;
using support::train_to;
using support::trained;
using support::with_graphs;

// Without dropout biases get their gradients elsewhere (nn::Seam::bias_grad).
config::RunPlan without_dropout(config::RunPlan plan) {
  plan.model.dropout = plan.model.embedding_dropout = 0;
  return plan;
}

void train_recorded(const Grid& grid, double dropout, RunRecord& record) {
  config::RunPlan plan = gpu_plan(grid, "fp32", 20);
  if (dropout == 0) plan = without_dropout(plan);
  comm::run_gpu_ranks(grid.ranks(), [&](comm::World& world) {
    support::train_rank(world, plan, record);
    support::collect(world, record.gradients);
    support::collect(world, record.parameters);
  });
}

const RunRecord& one_gpu(double dropout) {
  static std::map<double, std::unique_ptr<RunRecord>> records;
  std::unique_ptr<RunRecord>& record = records[dropout];
  if (record == nullptr) {
    record = std::make_unique<RunRecord>();
    train_recorded({}, dropout, *record);
  }
  return *record;
}

class GpuGrid : public ::testing::TestWithParam<Grid> {};

std::vector<Grid> gpu_grids() {
  constexpr nn::SequenceParallel kShared = nn::SequenceParallel::on;
  constexpr Sharding kSharded = Sharding::optimizer;
  return {{},
          {.tp = 2},
          {.tp = 2, .sequence_parallel = kShared},
          {.pp = 2},
          {.pp = 2, .chunks = 2},
          {.dp = 2},
          {.dp = 2, .sharding = kSharded},
          {.tp = 4},
          {.tp = 4, .sequence_parallel = kShared},
          {.pp = 4, .chunks = 2},
          {.tp = 2, .pp = 2},
          {.tp = 2, .pp = 2, .chunks = 2, .sequence_parallel = kShared},
          {.tp = 2, .dp = 2, .sharding = kSharded},
          {.pp = 2, .dp = 2, .chunks = 2, .sharding = kSharded},
          {.dp = 4, .sharding = kSharded},
          {.dp = 2, .sharding = kSharded, .shard = ShardedState::gradients},
          {.pp = 2, .dp = 2, .chunks = 2, .sharding = kSharded, .shard = ShardedState::gradients}};
}

INSTANTIATE_TEST_SUITE_P(All, GpuGrid, ::testing::ValuesIn(gpu_grids()),
                         [](const auto& test) { return test.param.name(); });

TEST_P(GpuGrid, Fp32TrainsAsOnOneGpu) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  for (const double dropout : {0.1, 0.0}) {
    SCOPED_TRACE(dropout);
    RunRecord got;
    train_recorded(GetParam(), dropout, got);
    if (!comm::is_here(0)) continue;
    const RunRecord& want = one_gpu(dropout);
    EXPECT_LT(relative_error({got.losses[0]}, {want.losses[0]}), 1e-6);
    EXPECT_LT(relative_error({got.norms[0]}, {want.norms[0]}), 1e-6);
    ASSERT_EQ(got.losses.size(), want.losses.size());
    for (std::size_t i = 0; i < want.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], want.losses[i], 1e-5 * want.losses[i]) << i;
      EXPECT_NEAR(got.norms[i], want.norms[i], 1e-4 * want.norms[i]) << i;
    }
    EXPECT_LT(relative_error({got.evaluated}, {want.evaluated}), 1e-5);
    EXPECT_THAT(got.parameters.disagreeing(), ::testing::IsEmpty());
    if (GetParam().sharding != Sharding::none) continue;  // a rank has the sums of its own shards only
    ASSERT_EQ(got.gradients.tensors().size(), want.gradients.tensors().size());
    for (const auto& [name, values] : want.gradients.tensors())
      EXPECT_LT(relative_error(got.gradients.at(name), values), 1e-5) << name;
  }
}

TEST_P(GpuGrid, FiftyStepsFromGraphsHaveTheBitsOfEagerOnesAlsoAcrossACheckpoint) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  const config::RunPlan plan = gpu_plan(GetParam(), "bf16", 50);
  const SavedRun eager = trained(plan);
  EXPECT_EQ(eager.evaluated.size(), comm::is_here(0) ? 5u : 0u);
  for (const GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    SavedRun joined;
    train_to(0, 23, with_graphs(plan, way), dir.path(), joined);
    train_to(23, 50, with_graphs(plan, way), dir.path(), joined);
    expect_same(joined, eager);
  }
  expect_same(trained(with_graphs(plan, support::kWholeSteps)), eager);  // without the checkpoint
}

TEST_P(GpuGrid, GraphsNeedAsLittleWarmupAsTheyMayHave) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  const config::RunPlan plan = without_dropout(gpu_plan(GetParam(), "bf16", 10));
  const SavedRun eager = trained(plan);
  for (const auto& [way, warmup_steps] :
       {std::pair{support::kLayers, Index{0}}, std::pair{support::kWholeSteps, Index{1}}}) {
    SCOPED_TRACE(way.name);
    expect_same(trained(support::with_graphs(plan, way, warmup_steps)), eager);
  }
}

TEST_P(GpuGrid, GraphsOfPartsOfLayersHaveTheBitsOfEagerSteps) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  const config::RunPlan plan = without_dropout(gpu_plan(GetParam(), "bf16", 20));
  const SavedRun eager = trained(plan);
  for (const capture::ScopeSet& scopes :
       {capture::ScopeSet{capture::Scope::attn}, capture::ScopeSet{capture::Scope::mlp},
        capture::ScopeSet{capture::Scope::attn, capture::Scope::mlp}}) {
    SCOPED_TRACE(::testing::PrintToString(scopes.names()));
    config::RunPlan parts = with_graphs(plan, support::kLayers);
    parts.graphs.scopes = scopes;
    expect_same(trained(parts), eager);
  }
}

// In 16 bits products of fewer rows have the same bits, but sequence parallelism sums the gradients of norms by halves.
TEST_P(GpuGrid, SubMicrobatchesHaveTheBitsOfTheWholeIn16Bits) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  if (GetParam().tp == 1) GTEST_SKIP() << "nothing goes over tp";
  if (GetParam().sequence_parallel == nn::SequenceParallel::on) GTEST_SKIP() << "with sequence parallelism they differ";
  for (const char* precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    config::RunPlan plan = gpu_plan(GetParam(), precision, 20);
    if (plan.train.precision == "fp16") plan.model.attention_dropout = 0.1;  // our own attention
    ASSERT_EQ(plan.sub_batches(), 2);
    const SavedRun halves = trained(plan);
    plan.tp_overlap = config::TpOverlap::none;
    expect_same(trained(plan), halves);
  }
}

// In fp32 products of fewer rows may have their sums in another order.
TEST_P(GpuGrid, SubMicrobatchesTrainAsTheWhole) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  if (GetParam().tp == 1) GTEST_SKIP() << "nothing goes over tp";
  config::RunPlan plan = gpu_plan(GetParam(), "fp32", 10);
  plan.tp_overlap = config::TpOverlap::none;
  const SavedRun whole = trained(plan);
  plan.tp_overlap = config::TpOverlap::halves;
  ASSERT_EQ(plan.sub_batches(), 2);
  const SavedRun halves = trained(plan);
  if (!comm::is_here(0)) return;
  for (std::size_t i = 0; i < whole.losses.size(); ++i)
    EXPECT_NEAR(halves.losses[i], whole.losses[i], 1e-5 * whole.losses[i]) << i;
  EXPECT_NEAR(halves.losses[0], whole.losses[0], 1e-6 * whole.losses[0]);
}

// f16 with its loss scale, and our own attention, which draws random numbers.
TEST_P(GpuGrid, Fp16StepsWithAttentionDropoutFromGraphsHaveTheBitsOfEagerOnes) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  config::RunPlan plan = gpu_plan(GetParam(), "fp16", 20);
  plan.model.attention_dropout = 0.1;
  const SavedRun eager = trained(plan);
  expect_same(trained(with_graphs(plan, support::kWholeSteps)), eager);
  expect_same(trained(with_graphs(plan, support::kLayersPerSlot)), eager);
}

TEST_P(GpuGrid, StepsThatAreCheckedAgreeAndKeepTheBitsOfEagerOnes) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  const config::RunPlan plan = gpu_plan(GetParam(), "bf16", 20);
  const SavedRun eager = trained(plan);
  for (const GraphWay& way : {support::kWholeSteps, support::kLayers}) {
    SCOPED_TRACE(way.name);
    config::RunPlan checked = with_graphs(plan, way);
    checked.graphs.check_steps = 2;
    expect_same(trained(checked), eager);
  }
}

TEST_P(GpuGrid, AShardedOptimizerHasTheBitsOfThePlainOne) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  if (GetParam().sharding == Sharding::none) GTEST_SKIP() << "the optimizer of this grid is a plain one";
  if (GetParam().shard == ShardedState::gradients) GTEST_SKIP() << "gradients have another order of sums";
  Grid plain = GetParam();
  plain.sharding = Sharding::none;
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    expect_same(trained(gpu_plan(GetParam(), precision, 20)), trained(gpu_plan(plain, precision, 20)));
  }
}

TEST_P(GpuGrid, ShardedGradientsTrainAsWholeOnes) {
  MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks());
  if (GetParam().shard != ShardedState::gradients) GTEST_SKIP() << "gradients of this grid are whole";
  Grid whole = GetParam();
  whole.shard = ShardedState::moments;
  const SavedRun got = trained(gpu_plan(GetParam(), "fp32", 6)), want = trained(gpu_plan(whole, "fp32", 6));
  EXPECT_LT(relative_error(got.losses, want.losses), 1e-6);
  EXPECT_LT(relative_error(got.norms, want.norms), 1e-5);
}

/// Six ranks: NCCL's sums over three depend on the place of a number. In f32, so that a rounding shows.
class GpuHeldAlike : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(All, GpuHeldAlike,
                         ::testing::Values(Grid{.tp = 2, .dp = 3},
                                           Grid{.tp = 2, .dp = 3, .sequence_parallel = nn::SequenceParallel::on},
                                           Grid{.tp = 2, .dp = 3, .sharding = Sharding::optimizer},
                                           Grid{.pp = 2, .dp = 3},
                                           Grid{.pp = 2, .dp = 3, .chunks = 2, .sharding = Sharding::optimizer}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(GpuHeldAlike, StaysAlikeOverTheRanksOfAModelCopy) {
  const Grid grid = GetParam();
  MEGALITH_NEEDS_GPU_RANKS(grid.ranks());
  const config::RunPlan eager = gpu_plan(grid, "fp32", 10);
  for (const config::RunPlan& plan : {eager, with_graphs(eager, support::kWholeSteps)}) {
    RunRecord got;
    comm::run_gpu_ranks(grid.ranks(), [&](comm::World& world) {
      support::train_rank(world, plan, got);
      support::collect(world, got.parameters);
    });
    EXPECT_THAT(got.parameters.disagreeing(), ::testing::IsEmpty()) << capture::name(plan.graphs.mode);
  }
}

}  // namespace
}  // namespace megalith
