#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/agreeing_runs.h"
#include "tests/train/graph_ways.h"

// Llama's parts (RMS norms, rotations, kv heads, SwiGLU, no biases, a head of its own) on every grid.
namespace megalith {
namespace {

using support::expect_fp64_agrees;
using support::expect_gradients_agree;
using support::Grid;
using support::relative_error;
using support::RunRecord;

/// 8 heads of 6 on 4 kv heads, so that tp may be 4; a head is not hidden / heads wide.
config::RunPlan llama_plan(const Grid& grid, const std::string& precision, Index steps = 20) {
  config::RunConfig c = support::small_config(grid, precision, steps);
  c.model.family = "llama";
  c.model.num_heads = 8;
  c.model.num_kv_heads = 4;
  c.model.head_dim = 6;
  c.model.norm_eps = 1e-6;
  c.model.rope_theta = 500;
  return config::resolve(c);
}

void run(const config::RunPlan& plan, RunRecord& record) {
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) { support::train_rank(world, plan, record); });
}

const RunRecord& llama_on_one_rank(const std::string& precision) {
  static const auto make = [](const char* name) {
    auto record = std::make_unique<RunRecord>();
    run(llama_plan({}, name), *record);
    return record;
  };
  static const std::unique_ptr<RunRecord> fp64 = make("fp64"), fp32 = make("fp32");
  return precision == "fp64" ? *fp64 : *fp32;
}

class LlamaGrid : public ::testing::TestWithParam<Grid> {};

TEST_P(LlamaGrid, Fp64AgreesWithOneRank) {
  RunRecord got;
  run(llama_plan(GetParam(), "fp64"), got);
  expect_fp64_agrees(got, llama_on_one_rank("fp64"));
  expect_gradients_agree(GetParam(), got, llama_on_one_rank("fp64"), 1e-12);
}

TEST_P(LlamaGrid, Fp32AgreesWithOneRank) {
  const RunRecord& want = llama_on_one_rank("fp32");
  RunRecord got;
  run(llama_plan(GetParam(), "fp32"), got);
  EXPECT_LT(relative_error({got.losses[0]}, {want.losses[0]}), 1e-6);
  EXPECT_LT(relative_error({got.norms[0]}, {want.norms[0]}), 1e-6);
  EXPECT_LT(relative_error(got.losses, want.losses), 1e-5);
  expect_gradients_agree(GetParam(), got, want, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, LlamaGrid, ::testing::ValuesIn(support::all_and_sharded_grids()),
                         [](const auto& test) { return test.param.name(); });

TEST(Llama, NormsOfQueriesAndKeysTrainAlike) {
  for (const nn::QkNorm kind : {nn::QkNorm::head, nn::QkNorm::all}) {
    const auto plan_on = [kind](const Grid& grid) {
      config::RunPlan plan = llama_plan(grid, "fp64", 8);
      plan.model.qk_norm = kind;
      return plan;
    };
    RunRecord want;
    run(plan_on({}), want);
    for (const Grid& grid : {Grid{.tp = 2}, Grid{.tp = 4}, Grid{.tp = 2, .sequence_parallel = nn::SequenceParallel::on},
                             Grid{.tp = 2, .pp = 2, .dp = 2, .sharding = Sharding::optimizer}}) {
      SCOPED_TRACE(grid.name());
      RunRecord got;
      run(plan_on(grid), got);
      expect_fp64_agrees(got, want);
      expect_gradients_agree(grid, got, want, 1e-12);
    }
  }
}

TEST(Llama, HasATableForItsHeadAndNoneForPositions) {
  const RunRecord& run = llama_on_one_rank("fp64");
  EXPECT_TRUE(run.parameters.tensors().contains("head.weight"));
  EXPECT_FALSE(run.parameters.tensors().contains("embedding.position.weight"));
  EXPECT_FALSE(run.parameters.tensors().contains("layers.0.attention.qkv.bias"));
  EXPECT_EQ(run.parameters.at("layers.0.attention.qkv.weight").size(), (8 + 2 * 4) * 6 * 20u);
  EXPECT_EQ(run.parameters.at("layers.0.mlp.up.weight").size(), 28 * 2 * 20u);
  EXPECT_LT(run.losses.back(), run.losses.front() - 0.2) << "it learns";
}

TEST(Llama, ATiedHeadTrainsAlikeOnStagesApart) {
  RunRecord want, got;
  config::RunPlan plan = llama_plan({}, "fp64");
  plan.model.tying = model::Tying::tied;
  run(plan, want);
  plan = llama_plan({.tp = 2, .pp = 2}, "fp64");
  plan.model.tying = model::Tying::tied;
  run(plan, got);
  expect_fp64_agrees(got, want);
}

TEST(Llama, StepsFromGraphsAreThoseOfEagerRuns) {
  RunRecord want;
  run(llama_plan({.tp = 2, .pp = 2}, "fp32", 8), want);
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    RunRecord got;
    run(support::with_graphs(llama_plan({.tp = 2, .pp = 2}, "fp32", 8), way, 2), got);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.parameters.tensors(), want.parameters.tensors());
  }
}

TEST(Llama, RecomputationChangesNoBits) {
  for (const Grid& grid : {Grid{}, Grid{.tp = 2, .pp = 2, .sequence_parallel = nn::SequenceParallel::on}}) {
    RunRecord want;
    run(llama_plan(grid, "fp32", 6), want);
    std::vector<nn::RecomputeConfig> ways = {{.mode = nn::RecomputeMode::full},
                                             {.mode = nn::RecomputeMode::full, .layers = 2}};
    for (const auto module : {nn::RecomputeModule::gelu, nn::RecomputeModule::norms, nn::RecomputeModule::attention,
                              nn::RecomputeModule::mlp}) {
      ways.push_back({.mode = nn::RecomputeMode::selective});
      ways.back().add(module);
    }
    for (const nn::RecomputeConfig& way : ways) {
      config::RunPlan plan = llama_plan(grid, "fp32", 6);
      plan.recompute = way;
      RunRecord got;
      run(plan, got);
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_EQ(got.parameters.tensors(), want.parameters.tensors());
    }
  }
}

}  // namespace
}  // namespace megalith
