#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/agreeing_runs.h"
#include "tests/train/graph_ways.h"

// BERT's blocks: norms after residual sums, with one after the embeddings, GELU with the error function, and a table of
// types, on every grid.
namespace megalith {
namespace {

using support::expect_fp64_agrees;
using support::expect_gradients_agree;
using support::Grid;
using support::relative_error;
using support::RunRecord;

config::RunPlan post_norm_plan(const Grid& grid, const std::string& precision, Index steps = 20) {
  config::RunConfig c = support::small_config(grid, precision, steps);
  c.model.norm_placement = "post";
  c.model.activation = "gelu_erf";
  c.model.token_types = 2;
  return config::resolve(c);
}

void run_post_norm(const config::RunPlan& plan, RunRecord& record) {
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) { support::train_rank(world, plan, record); });
}

const RunRecord& post_norm_on_one_rank(const std::string& precision) {
  static const auto make = [](const char* name) {
    auto record = std::make_unique<RunRecord>();
    run_post_norm(post_norm_plan({}, name), *record);
    return record;
  };
  static const std::unique_ptr<RunRecord> fp64 = make("fp64"), fp32 = make("fp32");
  return precision == "fp64" ? *fp64 : *fp32;
}

class PostNormGrid : public ::testing::TestWithParam<Grid> {};

TEST_P(PostNormGrid, Fp64AgreesWithOneRank) {
  RunRecord got;
  run_post_norm(post_norm_plan(GetParam(), "fp64"), got);
  expect_fp64_agrees(got, post_norm_on_one_rank("fp64"));
  expect_gradients_agree(GetParam(), got, post_norm_on_one_rank("fp64"), 1e-12);
}

TEST_P(PostNormGrid, Fp32AgreesWithOneRank) {
  const RunRecord& want = post_norm_on_one_rank("fp32");
  RunRecord got;
  run_post_norm(post_norm_plan(GetParam(), "fp32"), got);
  EXPECT_LT(relative_error({got.losses[0]}, {want.losses[0]}), 1e-6);
  EXPECT_LT(relative_error({got.norms[0]}, {want.norms[0]}), 1e-6);
  EXPECT_LT(relative_error(got.losses, want.losses), 1e-5);
  expect_gradients_agree(GetParam(), got, want, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, PostNormGrid, ::testing::ValuesIn(support::all_and_sharded_grids()),
                         [](const auto& test) { return test.param.name(); });

TEST(PostNorm, HasANormAfterTheEmbeddingsAndNoneAtTheEnd) {
  const RunRecord& run = post_norm_on_one_rank("fp64");
  EXPECT_TRUE(run.parameters.tensors().contains("embedding.norm.weight"));
  EXPECT_TRUE(run.parameters.tensors().contains("embedding.norm.bias"));
  EXPECT_EQ(run.parameters.at("embedding.type.weight").size(), 2u * 20);
  EXPECT_FALSE(run.parameters.tensors().contains("final_norm.weight"));
  EXPECT_LT(run.losses.back(), run.losses.front() - 0.2) << "it learns";
}

TEST(PostNorm, StepsFromGraphsAreThoseOfEagerRuns) {
  RunRecord want;
  run_post_norm(post_norm_plan({.tp = 2, .pp = 2}, "fp32", 8), want);
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    RunRecord got;
    run_post_norm(support::with_graphs(post_norm_plan({.tp = 2, .pp = 2}, "fp32", 8), way, 2), got);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.parameters.tensors(), want.parameters.tensors());
  }
}

TEST(PostNorm, RecomputationChangesNoBits) {
  for (const Grid& grid : {Grid{}, Grid{.tp = 2, .pp = 2, .sequence_parallel = nn::SequenceParallel::on}}) {
    RunRecord want;
    run_post_norm(post_norm_plan(grid, "fp32", 6), want);
    std::vector<nn::RecomputeConfig> ways = {
        {.mode = nn::RecomputeMode::full},
        {.mode = nn::RecomputeMode::full, .layers = 2},
        {.mode = nn::RecomputeMode::full, .method = nn::RecomputeMethod::block, .layers = 1}};
    for (const auto module : {nn::RecomputeModule::gelu, nn::RecomputeModule::norms, nn::RecomputeModule::attention,
                              nn::RecomputeModule::mlp}) {
      ways.push_back({.mode = nn::RecomputeMode::selective});
      ways.back().add(module);
    }
    for (const nn::RecomputeConfig& way : ways) {
      config::RunPlan plan = post_norm_plan(grid, "fp32", 6);
      plan.recompute = way;
      RunRecord got;
      run_post_norm(plan, got);
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_EQ(got.parameters.tensors(), want.parameters.tensors());
    }
  }
}

}  // namespace
}  // namespace megalith
