// graphs.check: steps from graphs beside eager ones, over all planned memory and, layer by layer, over what graphs
// leave there on the way. Steps that agree change nothing; what does not agree is named.
#include <array>

#include "megalith/base/build.h"

#include "tests/train/differing_steps.h"
#include "tests/train/graph_run.h"

namespace megalith {
namespace {

using support::GraphWay;
using support::Grid;

config::RunPlan plan_of(const Grid& grid, const std::string& precision, const GraphWay& way, Index steps,
                        Index checked) {
  config::RunPlan plan = support::with_graphs(support::small_plan(grid, precision, steps), way, support::kCheckWarmup);
  plan.graphs.check_steps = checked;
  return plan;
}

class CheckedSteps : public ::testing::TestWithParam<std::tuple<Grid, GraphWay>> {};

TEST_P(CheckedSteps, FindNothingAmissAndChangeNoBits) {
  const auto& [grid, way] = GetParam();
  const auto run = [](const config::RunPlan& plan) { return support::run_of(plan, [](train::Engine&, Index) {}); };
  const auto got = run(plan_of(grid, "bf16", way, 20, 5)), want = run(support::small_plan(grid, "bf16", 20));
  support::expect_same_training(*got, *want);
  if (grid.sharding == Sharding::none) support::expect_same_gradients(*got, *want);
}

constexpr Grid kGrids[] = {{.tp = 1},
                           {.tp = 2, .pp = 2},
                           {.pp = 2, .dp = 2, .chunks = 2},
                           {.dp = 2, .sharding = Sharding::optimizer},
                           {.tp = 2, .pp = 2, .sequence_parallel = nn::SequenceParallel::on}};

INSTANTIATE_TEST_SUITE_P(All, CheckedSteps,
                         ::testing::Combine(::testing::ValuesIn(kGrids), ::testing::ValuesIn(support::kGraphWays)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name() + "_" + std::get<1>(test.param).name;
                         });

using support::kMeddled;
using support::last_of_eager_run;
using support::move_out_of_the_plan;
using support::swap_views;

std::string error_of(const config::RunPlan& plan, const support::MeddleWithStep& meddle,
                     const model::BatchSource& source) {
  return support::error_of([](int size, const auto& body) { comm::run_ranks(size, body); }, plan, meddle, source);
}

TEST(DifferingSteps, AreNamedByTheOpInAGraphOfTheCpu) {
  for (const GraphWay& way : {support::kWholeSteps, support::kLayers, support::kLayersPerSlot}) {
    const config::RunPlan plan = plan_of({.tp = 2, .pp = 2}, "fp32", way, 8, 8);
    const support::HashedBatches source(plan.model.vocab_size);
    // Layer 5 is in the second stage: layer norms read each other's weights, on one of its two ranks.
    const std::string error = error_of(
        plan,
        [](train::Engine& engine, int rank, Index step) {
          if (rank == 3 && step == kMeddled)
            swap_views(engine, "layers.5.norm1.weight", "layers.5.norm2.weight", &Param::value);
        },
        source);
    EXPECT_TRUE(error.starts_with("rank 3: step 6: [graph] training, chunk 0, microbatch 0, layer 5, op "))
        << way.name << ": " << error;
    EXPECT_NE(error.find("norm): a tensor of shape [20] lies at another address than when captured"), std::string::npos)
        << way.name << ": " << error;
  }
}

TEST(DifferingSteps, AreNamedByDebugBuildsUnasked) {
  if constexpr (!build::is_debug) GTEST_SKIP() << "debug builds check one step in any case";
  const config::RunPlan plan = plan_of({.pp = 2}, "fp32", support::kWholeSteps, 8, 0);
  const support::HashedBatches source(plan.model.vocab_size);
  const auto swap_before = [](Index swapped) {
    return [swapped](train::Engine& engine, int rank, Index step) {
      if (rank == 1 && step == swapped)
        swap_views(engine, "layers.5.norm1.weight", "layers.5.norm2.weight", &Param::value);
    };
  };
  const Index first_launched = support::kCheckWarmup + 1;
  EXPECT_NE(error_of(plan, swap_before(first_launched), source).find("lies at another address than when captured"),
            std::string::npos);
  EXPECT_EQ(error_of(plan, swap_before(first_launched + 1), source), "") << "one step, and no other";
}

TEST(DifferingSteps, AreNamedByTheFirstResultThatDiffers) {
  for (const GraphWay& way : {support::kLayers, support::kLayersPerSlot}) {
    const config::RunPlan plan = plan_of({.tp = 2, .pp = 2}, "fp32", way, 8, 8);
    const support::MeddlingBatches source(plan.model.vocab_size);
    const auto meddle = [&](train::Engine& engine, int rank, Index step) {
      if (rank != 3 || step != kMeddled) return;
      source.expect(last_of_eager_run(plan), [&](std::span<std::int32_t>) {
        engine.stage().params().at("layers.5.norm1.weight").value.data<float>()[0] += 1;
      });
    };
    const std::string error = error_of(plan, meddle, source);
    EXPECT_EQ(error.substr(0, error.find(" at byte")),
              "rank 3: [graphs] step 6: result of residual_norm, chunk 0, microbatch 7, layer 5")
        << way.name;
  }
}

/// What differs, by a message.
std::string named(const std::string& error) {
  return error.substr(0, error.find(" differs between graphs and an eager run"));
}

TEST(DifferingSteps, AreNamedByAMicrobatchThatOthersHaveWrittenOver) {
  for (const GraphWay& way : {support::kLayers, support::kLayersPerSlot}) {
    // On one rank, and on the last stage of two, all microbatches use one slot in turn.
    for (const Grid& grid : {Grid{}, Grid{.tp = 2, .pp = 2}}) {
      const config::RunPlan plan = plan_of(grid, "fp32", way, 8, 8);
      const support::MeddlingBatches source(plan.model.vocab_size);
      const int last = grid.ranks() - 1;
      const auto meddle = [&](train::Engine& engine, int rank, Index step) {
        if (rank != last || step != kMeddled) return;
        float& weight = engine.stage().params().at("layers.5.norm1.weight").value.data<float>()[0];
        source.expect(
            support::of_eager_run(plan, 2), [&weight](std::span<std::int32_t>) { weight += 1; },
            [&weight, before = weight](std::span<std::int32_t>) { weight = before; });
      };
      EXPECT_EQ(named(error_of(plan, meddle, source)),
                str("rank ", last, ": [graphs] step 6: result of residual_norm, chunk 0, microbatch 2, layer 5"))
          << way.name << " " << grid.name();
    }
  }
}

TEST(DifferingSteps, AreNamedByTheGradientWhereResultsAgree) {
  const config::RunPlan plan = plan_of({.pp = 2, .chunks = 2}, "fp32", support::kLayers, 8, 8);
  const support::MeddlingBatches source(plan.model.vocab_size);
  const auto meddle = [&](train::Engine& engine, int rank, Index step) {
    if (rank != 0 || step != kMeddled) return;
    source.expect(last_of_eager_run(plan), [&](std::span<std::int32_t>) {
      engine.stage().params().at("layers.1.norm2.weight").grad.data<float>()[0] += 1;
    });
  };
  // While microbatch 7 goes forward through the first chunk, the backward pass of microbatch 4 is the next.
  EXPECT_EQ(named(error_of(plan, meddle, source)),
            "rank 0: [graphs] step 6: gradient of layers.1.norm2.weight, chunk 0, microbatch 4, layer 1");
}

TEST(DifferingSteps, AreNamedByTheInputsThatDiffer) {
  const config::RunPlan plan = plan_of({}, "fp32", support::kLayers, 8, 8);
  const support::MeddlingBatches source(plan.model.vocab_size);
  const auto meddle = [&](train::Engine&, int, Index step) {
    if (step != kMeddled) return;
    source.expect(last_of_eager_run(plan),
                  [](std::span<std::int32_t> tokens) { tokens[3] = 1 - std::min(tokens[3], 1); });
  };
  EXPECT_EQ(error_of(plan, meddle, source).substr(0, 71),
            "rank 0: [graphs] step 6: tokens, chunk 0, microbatch 7 at byte 12 of 36");
}

TEST(RefusedCaptures, AreNamedByTheStepAndTheirPlaceInIt) {
  for (const GraphWay& way : {support::kPasses, support::kLayers}) {
    const config::RunPlan plan = plan_of({.pp = 2}, "fp32", way, 8, 0);
    const support::HashedBatches source(plan.model.vocab_size);
    std::array<Buffer, 2> foreign;
    const std::string error = error_of(
        plan,
        [&](train::Engine& engine, int rank, Index step) {
          if (rank == 1 && step == support::kCheckWarmup)
            move_out_of_the_plan(engine, "layers.5.norm1.weight", foreign[1]);
        },
        source);
    EXPECT_EQ(error,
              "rank 1: step 3: [capture] training, chunk 0, microbatch 0, layer 5: residual_norm: a tensor of "
              "shape [20] lies outside the run's planned memory: its address may be another at the launch")
        << way.name;
  }
}

TEST(RefusedCaptures, OfAnEvaluationAreNamedByTheBatch) {
  config::RunPlan plan = plan_of({}, "fp32", support::kPasses, 8, 0);
  const support::HashedBatches source(plan.model.vocab_size);
  Buffer foreign;
  const std::string error = error_of(
      plan,
      [&](train::Engine& engine, int, Index step) {
        if (step != kMeddled) return;
        move_out_of_the_plan(engine, "layers.5.norm1.weight", foreign);
        engine.evaluate(source, (support::kCheckWarmup + 1) * plan.train.global_batch);
      },
      source);
  EXPECT_EQ(error.substr(0, error.find(": a tensor")),
            "rank 0: evaluated batch 3: [capture] evaluation, chunk 0, microbatch 0, layer 5: residual_norm");
}

}  // namespace
}  // namespace megalith
