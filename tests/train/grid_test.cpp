#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/agreeing_runs.h"

// The grid promise (docs/numerics.md): every grid trains the same model.
namespace megalith {
namespace {

using support::expect_fp64_agrees;
using support::expect_gradients_agree;
using support::Grid;
using support::relative_error;
using support::RunRecord;

class GridPromise : public ::testing::TestWithParam<Grid> {};

void train_without_dropout(const Grid& grid, RunRecord& record) {
  config::RunPlan plan = support::small_plan(grid, "fp64");
  plan.model.dropout = plan.model.embedding_dropout = plan.model.attention_dropout = 0;
  comm::run_ranks(grid.ranks(), [&](comm::World& world) { support::train_rank(world, plan, record); });
}

const RunRecord& gpt_on_one_rank(const std::string& precision) {
  static const auto make = [](const char* name) {
    auto record = std::make_unique<RunRecord>();
    support::train_on({}, name, *record);
    return record;
  };
  static const std::unique_ptr<RunRecord> fp64 = make("fp64"), fp32 = make("fp32");
  return precision == "fp64" ? *fp64 : *fp32;
}

TEST_P(GridPromise, Fp64AgreesWithOneRank) {
  RunRecord got;
  support::train_on(GetParam(), "fp64", got);
  expect_fp64_agrees(got, gpt_on_one_rank("fp64"));
  expect_gradients_agree(GetParam(), got, gpt_on_one_rank("fp64"), 1e-12);
}

// Without dropouts biases get their gradients elsewhere (nn::Seam::bias_grad).
TEST_P(GridPromise, Fp64AgreesWithOneRankWithoutDropout) {
  static const std::unique_ptr<RunRecord> want = [] {
    auto record = std::make_unique<RunRecord>();
    train_without_dropout({}, *record);
    return record;
  }();
  RunRecord got;
  train_without_dropout(GetParam(), got);
  expect_fp64_agrees(got, *want);
  expect_gradients_agree(GetParam(), got, *want, 1e-12);
}

TEST_P(GridPromise, Fp32AgreesWithOneRank) {
  const RunRecord& want = gpt_on_one_rank("fp32");
  RunRecord got;
  support::train_on(GetParam(), "fp32", got);
  EXPECT_LT(relative_error({got.losses[0]}, {want.losses[0]}), 1e-6);
  EXPECT_LT(relative_error({got.norms[0]}, {want.norms[0]}), 1e-6);
  EXPECT_LT(relative_error(got.losses, want.losses), 1e-5);
  EXPECT_LT(relative_error(got.norms, want.norms), 1e-3);
  expect_gradients_agree(GetParam(), got, want, 1e-5);
}

TEST_P(GridPromise, TwoRunsGiveTheSameBits) {
  RunRecord first, second;
  support::train_on(GetParam(), "fp32", first, 5);
  support::train_on(GetParam(), "fp32", second, 5);
  EXPECT_THAT(first.parameters.disagreeing(), ::testing::IsEmpty());
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.norms, second.norms);
  EXPECT_EQ(first.parameters.tensors(), second.parameters.tensors());
}

INSTANTIATE_TEST_SUITE_P(All, GridPromise, ::testing::ValuesIn(support::all_grids()),
                         [](const auto& test) { return test.param.name(); });

TEST(GridPromise, TheSmallModelLearns) {
  const RunRecord& run = gpt_on_one_rank("fp64");
  EXPECT_LT(run.losses.back(), run.losses.front() - 0.2);
}

TEST(GridPromise, UnevenStagesTrainAlike) {
  RunRecord got;
  config::RunPlan plan = support::small_plan({.pp = 4}, "fp64");
  plan.stage_layers = {0, 3, 4, 1};
  comm::run_ranks(4, [&](comm::World& world) { support::train_rank(world, plan, got); });
  EXPECT_LT(relative_error(got.losses, gpt_on_one_rank("fp64").losses), 1e-12);
  RunRecord chunked;
  plan = support::small_plan({.pp = 2, .chunks = 2}, "fp64");
  plan.stage_layers = {3, 0, 5, 0};
  plan.group_size = 3;
  comm::run_ranks(2, [&](comm::World& world) { support::train_rank(world, plan, chunked); });
  EXPECT_LT(relative_error(chunked.losses, gpt_on_one_rank("fp64").losses), 1e-12);
}

TEST(GridPromise, SubMicrobatchesChangeNoBits) {
  for (const Grid& grid : {Grid{.tp = 2}, Grid{.tp = 2, .pp = 2, .dp = 2}}) {
    RunRecord whole, halves;
    config::RunPlan plan = support::small_plan(grid, "fp64", 5);
    plan.train.micro_batch = 2;
    const int ranks = plan.grid.world_size;
    plan.tp_overlap = config::TpOverlap::none;
    comm::run_ranks(ranks, [&](comm::World& world) { support::train_rank(world, plan, whole); });
    plan.tp_overlap = config::TpOverlap::halves;
    EXPECT_EQ(plan.sub_batches(), 2);
    comm::run_ranks(ranks, [&](comm::World& world) { support::train_rank(world, plan, halves); });
    EXPECT_EQ(halves.losses, whole.losses);
    EXPECT_EQ(halves.norms, whole.norms);
    EXPECT_EQ(halves.evaluated, whole.evaluated);
    EXPECT_EQ(halves.parameters.tensors(), whole.parameters.tensors());
  }
}

TEST(GridPromise, OtherAxisOrdersAndMicrobatchesTrainAlike) {
  RunRecord got;
  config::RunPlan plan = support::small_plan({.tp = 2, .pp = 2, .dp = 2}, "fp64");
  grid::ParallelSizes sizes{.world_size = 8, .tp = 2, .pp = 2};
  sizes.order = "dp-pp-tp";
  plan.grid = grid::resolve(sizes);
  plan.train.micro_batch = 2;
  comm::run_ranks(8, [&](comm::World& world) { support::train_rank(world, plan, got); });
  EXPECT_LT(relative_error(got.losses, gpt_on_one_rank("fp64").losses), 1e-12);
}

}  // namespace
}  // namespace megalith
