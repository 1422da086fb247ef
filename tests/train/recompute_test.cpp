#include <gtest/gtest.h>

#include "megalith/train/recompute_choices.h"

#include "tests/support/sweep.h"
#include "tests/train/graph_run.h"
#include "tests/train/recompute_modes.h"

// Runs that compute activations again in backward, against runs that keep them: the same bits on every grid, in every
// way of graphs, from less memory.
namespace megalith {
namespace {

using capture::GraphMode;
using nn::RecomputeModule;
using support::Grid;
using support::RecomputeWay;

config::RunPlan with(config::RunPlan plan, const nn::RecomputeConfig& recompute, GraphMode graphs) {
  plan.recompute = recompute;
  plan.graphs.mode = graphs;
  plan.graphs.warmup_steps = 2;
  return plan;
}

struct ActivationRun {
  std::unique_ptr<support::GraphRun> run;
  Index activations = 0;  ///< bytes of rank 0
};

ActivationRun outcome_of(const config::RunPlan& plan) {
  ActivationRun outcome;
  outcome.run = support::run_of(plan, [&](train::Engine& engine, Index) {
    EXPECT_EQ(engine.planned_bytes().at("activations"), engine.taken_bytes().at("activations"));
    EXPECT_EQ(engine.planned_bytes().at(kScratchOwner), engine.taken_bytes().at(kScratchOwner));
    if (engine.world().rank() == 0) outcome.activations = engine.planned_bytes().at("activations");
  });
  return outcome;
}

class RecomputeGrid : public ::testing::TestWithParam<Grid> {};

TEST_P(RecomputeGrid, HasTheBitsOfKeptActivationsAndTakesLess) {
  constexpr GraphMode kWays[] = {GraphMode::none, GraphMode::layers, GraphMode::iteration};
  for (const char* precision : {"fp32", "bf16"}) {
    const config::RunPlan plan = support::small_plan(GetParam(), precision);
    const ActivationRun kept = outcome_of(with(plan, {}, GraphMode::none));
    std::size_t turn = GetParam().name().size();  // another one per grid
    for (const RecomputeWay& mode : support::recompute_ways()) {
      // In 16 bits z was rounded, and gelu(z) was not made of that (ops::Gelu).
      if (mode.config.has(RecomputeModule::gelu) && std::string(precision) == "bf16") continue;
      const std::size_t some_ways = support::sweep_stride(3) == 1 ? 3 : 1;  // of the three: each mode takes the next
      for (std::size_t i = 0; i < some_ways; ++i) {
        const GraphMode way = kWays[turn++ % 3];
        SCOPED_TRACE(str(precision, " ", mode.name, ", graphs ", name(way)));
        const ActivationRun again = outcome_of(with(plan, mode.config, way));
        support::expect_same(*again.run, *kept.run);
        EXPECT_LT(again.activations, kept.activations);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RecomputeGrid, ::testing::ValuesIn(support::all_grids()),
                         [](const auto& grid) { return grid.param.name(); });

// Every layer that is computed again gives back the same bytes; one more than was asked for would take a forward pass
// of a layer for nothing.
TEST(Recompute, ABlockHasAsManyLayersAsAsked) {
  const auto activations = [](const nn::RecomputeConfig& recompute) {
    const config::RunPlan plan = with(support::small_plan({}, "fp32"), recompute, GraphMode::none);
    return train::planned_bytes(plan, 0).at("activations");
  };
  const Index kept = activations({}), whole = activations(support::full(nn::RecomputeMethod::uniform, 1));
  const Index of_layer = (kept - whole) / 8;
  EXPECT_GT(of_layer, 0);
  for (Index layers = 1; layers <= 8; ++layers)
    EXPECT_EQ(kept - activations(support::full(nn::RecomputeMethod::block, layers)), layers * of_layer) << layers;
}

// What rule V12 of graphs forbids elsewhere, as dropout there draws numbers from a state: every mode with every set of
// scopes, with dropout on hidden states and on attention's probabilities.
TEST(Recompute, PartsOfLayersInGraphsHaveTheBitsToo) {
  using capture::Scope;
  for (const capture::ScopeSet& scopes :
       {capture::ScopeSet{Scope::attn}, {Scope::mlp}, {Scope::attn, Scope::mlp}, {}}) {
    for (const Grid& grid : {Grid{}, Grid{.tp = 2, .pp = 2, .sequence_parallel = nn::SequenceParallel::on}}) {
      const config::RunPlan plan = support::small_plan(grid, "fp32");
      ASSERT_GT(plan.model.dropout, 0);
      ASSERT_GT(plan.model.attention_dropout, 0);
      const ActivationRun kept = outcome_of(with(plan, {}, GraphMode::none));
      for (const RecomputeWay& mode : support::recompute_ways()) {
        SCOPED_TRACE(str(grid.name(), " ", mode.name, ", scopes ", text(scopes)));
        config::RunPlan scoped = with(plan, mode.config, GraphMode::layers);
        scoped.graphs.scopes = scopes;
        support::expect_same(*outcome_of(scoped).run, *kept.run);
      }
    }
  }
}

TEST(Recompute, SubMicrobatchesHaveTheBitsToo) {
  for (const nn::SequenceParallel sequence_parallel : {nn::SequenceParallel::off, nn::SequenceParallel::on}) {
    config::RunPlan plan = support::small_plan({.tp = 2, .pp = 2, .sequence_parallel = sequence_parallel}, "fp64");
    plan.train.micro_batch = 4;
    plan.tp_overlap = config::TpOverlap::halves;
    ASSERT_EQ(plan.sub_batches(), 2);
    const ActivationRun kept = outcome_of(with(plan, {}, GraphMode::none));
    for (const RecomputeWay& mode : support::recompute_ways()) {
      for (const GraphMode way : {GraphMode::none, GraphMode::layers}) {
        SCOPED_TRACE(str(mode.name, ", graphs ", name(way)));
        support::expect_same(*outcome_of(with(plan, mode.config, way)).run, *kept.run);
      }
    }
  }
}

TEST(Recompute, GeluOfRoundedNumbersStaysWithinTheirRoundings) {
  const config::RunPlan plan = support::small_plan({}, "bf16");
  const ActivationRun kept = outcome_of(with(plan, {}, GraphMode::none));
  const ActivationRun again = outcome_of(with(plan, support::selective({RecomputeModule::gelu}), GraphMode::none));
  EXPECT_EQ(again.run->record.losses[0], kept.run->record.losses[0]);  // forward passes are the same
  for (std::size_t step = 0; step < kept.run->record.losses.size(); ++step)
    EXPECT_NEAR(again.run->record.losses[step], kept.run->record.losses[step], 5e-4 * kept.run->record.losses[step]);
}

}  // namespace
}  // namespace megalith
