#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/moe_run.h"

// Models with experts on every grid: the grid promise (docs/numerics.md) for both grids.
namespace megalith {
namespace {

using testing::all_moe_grids;
using testing::moe_config;
using testing::moe_models;
using testing::MoeGrid;
using testing::MoeModel;
using testing::relative_error;
using testing::RunRecord;

const RunRecord& one_rank(const MoeModel& model) {
  static std::map<std::string, RunRecord> records;
  const auto [record, is_new] = records.try_emplace(model.name);
  if (is_new) testing::run_moe(config::resolve(moe_config({}, model, "fp64")), record->second);
  return record->second;
}

class MoeGridPromise : public ::testing::TestWithParam<std::tuple<MoeModel, MoeGrid>> {};

TEST_P(MoeGridPromise, Fp64AgreesWithOneRank) {
  const auto& [model, grid] = GetParam();
  RunRecord got;
  testing::run_moe(config::resolve(moe_config(grid, model, "fp64")), got);
  const RunRecord& want = one_rank(model);
  testing::expect_fp64_agrees(got, want);
  testing::expect_gradients_agree({.sharding = grid.sharding}, got, want, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(All, MoeGridPromise,
                         ::testing::Combine(::testing::ValuesIn(moe_models()), ::testing::ValuesIn(all_moe_grids())),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" + std::get<1>(test.param).name();
                         });

TEST(Moe, LearnsOnOneRank) {
  for (const MoeModel& model : moe_models()) {
    SCOPED_TRACE(model.name);
    const RunRecord& run = one_rank(model);
    EXPECT_LT(run.losses.back(), run.losses.front() - 0.15);
    EXPECT_EQ(run.parameters.at("layers.1.moe.experts.down.weight").size(), 8u * 20 * 12);
    EXPECT_EQ(run.parameters.at("layers.1.moe.router.weight").size(), 8u * 20);
  }
}

}  // namespace
}  // namespace megalith
