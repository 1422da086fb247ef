// Dispatchers of experts against each other: rows that ranks read where they are, and rows that are sent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/train/expert_rows.h"

#include "tests/comm/wrapped_world.h"
#include "tests/train/moe_run.h"
#include "tests/train/recompute_modes.h"

namespace megalith {
namespace {

using nn::SequenceParallel;
using support::moe_config;
using support::MoeGrid;
using support::MoeModel;
using support::RunRecord;

/// The ways of bringing rows into dispatch: own rows, replicas, shares, sequence parallelism; 2, 4 and 8 ranks that
/// exchange rows; one expert for each rank.
const std::vector<MoeGrid>& dispatcher_grids() {
  static const std::vector<MoeGrid> grids = {{2, 1, 1, 2, 1},
                                             {4, 1, 1, 4, 1},
                                             {8, 1, 1, 8, 1},
                                             {4, 2, 1, 2, 2},
                                             {4, 2, 1, 2, 1},
                                             {4, 1, 1, 2, 2},
                                             {8, 2, 2, 2, 2, 2, SequenceParallel::on}};
  return grids;
}

void run_with(config::RunConfig recipe, const std::string& dispatcher, const MoeModel& model, RunRecord& record,
              const nn::RecomputeConfig& recompute = {}) {
  recipe.moe.dispatcher = dispatcher;
  config::RunPlan plan = config::resolve(recipe);
  plan.recompute = recompute;
  support::run_moe(plan, record, nullptr, model.text);
}

void expect_same_bits(const RunRecord& got, const RunRecord& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.evaluated, want.evaluated);
  EXPECT_EQ(got.gradients.tensors(), want.gradients.tensors());
  EXPECT_EQ(got.parameters.tensors(), want.parameters.tensors());
}

class MoeDispatchers : public ::testing::TestWithParam<MoeModel> {};

TEST_P(MoeDispatchers, GiveTheSameBits) {
  const MoeModel& model = GetParam();
  std::string precision = "bf16";
  for (const MoeGrid& grid : dispatcher_grids()) {
    precision = precision == "bf16" ? "fp64" : "bf16";
    SCOPED_TRACE(grid.name() + " " + precision);
    config::RunConfig recipe = moe_config(grid, model, precision);
    RunRecord want, got;
    run_with(recipe, "all_to_all", model, want);
    run_with(recipe, "peer", model, got);
    EXPECT_EQ(want.losses.size(), 20u);
    expect_same_bits(got, want);
    if (grid.ranks == 8 && grid.tp == 1) continue;  // an expert a rank, or two slices: nothing to come later
    RunRecord in_parts;
    recipe.moe.overlap = true;
    run_with(recipe, "peer", model, in_parts);
    expect_same_bits(in_parts, want);
  }
}

INSTANTIATE_TEST_SUITE_P(All, MoeDispatchers, ::testing::ValuesIn(support::moe_models()),
                         [](const auto& test) { return std::string(test.param.name); });

const MoeModel& plain_model() { return support::moe_models()[1]; }

TEST(MoeDispatcher, GivesTheSameBitsWhereLayersAreRecomputed) {
  for (const support::RecomputeWay& way : support::recompute_ways()) {
    SCOPED_TRACE(way.name);
    const config::RunConfig recipe = moe_config({4, 1, 1, 2, 2}, plain_model(), "fp32", 3);
    RunRecord want, got;
    run_with(recipe, "all_to_all", plain_model(), want, way.config);
    run_with(recipe, "peer", plain_model(), got, way.config);
    expect_same_bits(got, want);
  }
}

std::vector<support::RecomputeWay> ways_of_fetching() {
  using nn::RecomputeModule;
  return {{"dispatch", support::selective({RecomputeModule::dispatch})},
          {"dispatch, mlp", support::selective({RecomputeModule::dispatch, RecomputeModule::mlp})},
          {"norms, attention, mlp, dispatch", support::selective({RecomputeModule::norms, RecomputeModule::attention,
                                                                  RecomputeModule::mlp, RecomputeModule::dispatch})}};
}

/// Bytes of rows that rank 0 keeps for backward.
Index planned_rows(const config::RunConfig& recipe, const nn::RecomputeConfig& recompute) {
  config::RunPlan plan = config::resolve(recipe);
  plan.recompute = recompute;
  return train::expert_rows_in(train::planned_bytes(plan, 0));
}

// Also with padded experts, whose groups hold rows of zeros.
TEST(MoeDispatcher, FetchedRowsHaveTheBitsOfKeptOnesAndTakeLess) {
  for (MoeGrid grid : dispatcher_grids()) {
    if (grid.ranks == 8 && grid.tp == 1) continue;
    for (const char* capacity : {"none", "pad"}) {
      config::RunConfig recipe = moe_config(grid, plain_model(), "bf16", 3);
      recipe.moe.capacity = capacity;
      if (capacity == std::string_view("pad")) recipe.moe.capacity_factor = 1.25, recipe.moe.capacity_run = 8;
      for (const char* dispatcher : {"all_to_all", "peer"}) {
        RunRecord want;
        run_with(recipe, dispatcher, plain_model(), want);
        recipe.moe.dispatcher = dispatcher;
        Index less_than = planned_rows(recipe, {});
        for (const support::RecomputeWay& way : ways_of_fetching()) {
          SCOPED_TRACE(str(grid.name(), " ", capacity, " ", dispatcher, " ", way.name));
          RunRecord got;
          recipe.moe.overlap = way.config.has(nn::RecomputeModule::mlp);
          run_with(recipe, dispatcher, plain_model(), got, way.config);
          recipe.moe.overlap = false;
          expect_same_bits(got, want);
          const Index rows = planned_rows(recipe, way.config);
          EXPECT_LT(rows, less_than);
          less_than = rows == 0 ? 1 : rows;
        }
      }
    }
  }
}

/// Calls of rank 0 in a group of experts, in one step.
comm::Counters calls_of_experts(const std::string& dispatcher, const std::string& group,
                                const nn::RecomputeConfig& recompute = {}) {
  config::RunConfig recipe = moe_config({4, 1, 1, 4, 1}, plain_model(), "fp32", 1);
  recipe.moe.dispatcher = dispatcher;
  config::RunPlan plan = config::resolve(recipe);
  plan.recompute = recompute;
  comm::Counters counters;
  comm::run_ranks(4, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    engine.step(support::HashedBatches(plan.model.vocab_size), {}, train::Stop::no);
    if (world.rank() != 0) return;
    for (const comm::Group& each : world.groups()) {
      if (each.name() == group) counters = each.counters();
    }
  });
  return counters;
}

TEST(MoeDispatcher, IsPeerBetweenRankThreads) {
  const comm::Counters sent = calls_of_experts("all_to_all", "etp-ep");
  const Index passes = 4 * 2;  // layers, microbatches of a rank
  EXPECT_EQ(sent[comm::Op::all_to_all].calls, 6 * passes);
  EXPECT_EQ(sent[comm::Op::gather_rows].calls, 0);
  for (const char* dispatcher : {"peer", "auto"}) {
    const comm::Counters read = calls_of_experts(dispatcher, "etp-ep");
    EXPECT_EQ(read[comm::Op::all_to_all].calls, 0);
    EXPECT_EQ(read[comm::Op::gather_rows].calls, 3 * passes);
    EXPECT_EQ(read[comm::Op::gather_sum_rows].calls, 3 * passes);
  }
}

TEST(MoeDispatcher, FetchesRowsOnceMoreForEachBackwardPass) {
  const nn::RecomputeConfig fetched = support::selective({nn::RecomputeModule::dispatch});
  const Index passes = 4 * 2;  // layers, microbatches of a rank
  EXPECT_EQ(calls_of_experts("all_to_all", "etp-ep", fetched)[comm::Op::all_to_all].calls, 7 * passes);
  const comm::Counters read = calls_of_experts("peer", "etp-ep", fetched);
  EXPECT_EQ(read[comm::Op::gather_rows].calls, 4 * passes);
  EXPECT_EQ(read[comm::Op::gather_sum_rows].calls, 3 * passes);
}

/// As a transport between processes of several hosts.
class ApartChannel final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  bool reads_rows() const override { return false; }
};

TEST(MoeDispatcher, SendsRowsWhereRanksDoNotReachEachOther) {
  config::RunConfig recipe = moe_config({2, 1, 1, 2, 1}, plain_model(), "fp32", 3);
  RunRecord want, got;
  run_with(recipe, "all_to_all", plain_model(), want);
  const auto run_apart = [&](RunRecord& record) {
    const config::RunPlan plan = config::resolve(recipe);
    comm::run_ranks(2, [&](comm::World& world) {
      comm::WrappedWorld<ApartChannel> apart(world);
      support::train_rank(apart, plan, record);
    });
  };
  run_apart(got);
  expect_same_bits(got, want);
  recipe.moe.dispatcher = "peer";
  try {
    run_apart(got);
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("moe.dispatcher = peer: group etp-ep has 2 ranks: must be at most 8, all "
                                     "on one host, which share memory; use moe.dispatcher = auto or all_to_all; "
                                     "graphs.mode"));
  }
}

}  // namespace
}  // namespace megalith
