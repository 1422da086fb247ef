// Graphs of models with experts through what happens to a run: no warm-up, graphs that are forgotten, steps that fp16
// skips, rows that travel in two parts, and steps that are made to differ.
#include <cstring>

#include "megalith/ops/step_end.h"

#include "tests/train/differing_steps.h"
#include "tests/train/graph_run.h"
#include "tests/train/graph_ways.h"
#include "tests/train/moe_run.h"

namespace megalith {
namespace {

using capture::Scope;
using support::GraphWay;
using support::MoeGrid;

/// Layers up to the first permutation, where rows are sent.
capture::GraphsConfig to_the_first_permutation(capture::GraphsPer per, Index warmup_steps) {
  capture::GraphsConfig graphs = support::graphs_of(support::kLayers, warmup_steps);
  graphs.per = per;
  graphs.scopes = capture::ScopeSet{Scope::attn, Scope::moe_router, Scope::moe_preprocess};
  return graphs;
}

config::RunConfig recipe_of(const MoeGrid& grid, const std::string& precision, Index steps, const char* dispatcher) {
  config::RunConfig recipe = support::moe_config(grid, {"", [](config::RunConfig&) {}}, precision, steps);
  recipe.moe.dispatcher = dispatcher;
  return recipe;
}

/// Every way to run this recipe from graphs, `warmup_steps` after the start.
std::vector<std::pair<std::string, config::RunPlan>> graph_plans(const MoeGrid& grid, const std::string& precision,
                                                                 Index steps, Index warmup_steps) {
  std::vector<std::pair<std::string, config::RunPlan>> all;
  for (const GraphWay& way : support::kGraphWays)
    all.emplace_back(
        way.name, support::with_graphs(config::resolve(recipe_of(grid, precision, steps, "peer")), way, warmup_steps));
  for (const capture::GraphsPer per : {capture::GraphsPer::microbatch, capture::GraphsPer::slot}) {
    config::RunPlan plan = config::resolve(recipe_of(grid, precision, steps, "all_to_all"));
    plan.graphs = to_the_first_permutation(per, warmup_steps);
    all.emplace_back(str("to the first permutation, per ", name(per)), std::move(plan));
  }
  return all;
}

std::unique_ptr<support::GraphRun> trained(const config::RunPlan& plan) {
  return support::run_of(plan, [&](const train::Engine& engine, Index) {
    EXPECT_EQ(engine.captured_graphs().stats.graphs > 0, plan.graphs.mode != capture::GraphMode::none);
  });
}

constexpr MoeGrid kLifeGrids[] = {{2, 1, 1, 2, 1}, {4, 1, 2, 2, 1, 2}};

TEST(MoeGraphLifecycle, NeedsNoWarmup) {
  for (const MoeGrid& grid : kLifeGrids) {
    const auto want = trained(config::resolve(recipe_of(grid, "bf16", 12, "all_to_all")));
    for (const Index warmup_steps : {0, 1}) {
      for (const auto& [name, plan] : graph_plans(grid, "bf16", 12, warmup_steps)) {
        // What the optimizer makes in its first step is not captured.
        if (plan.graphs.optimizer && warmup_steps == 0) continue;
        SCOPED_TRACE(str(grid.name(), ", ", name, ", ", warmup_steps, " steps before"));
        support::expect_same(*trained(plan), *want);
      }
    }
  }
}

TEST(MoeGraphLifecycle, GraphsThatAreForgottenAreCapturedAnew) {
  for (const MoeGrid& grid : kLifeGrids) {
    const auto want = support::run_forgetting(config::resolve(recipe_of(grid, "bf16", 12, "all_to_all")), false);
    for (const auto& [name, plan] : graph_plans(grid, "bf16", 12, 2)) {
      SCOPED_TRACE(grid.name() + " " + name);
      support::expect_same_training(*support::run_forgetting(plan, true), *want);
    }
  }
}

TEST(MoeGraphLifecycle, StepsThatAreSkippedLeaveTheBitsOfEagerOnes) {
  for (const MoeGrid& grid : kLifeGrids) {
    const auto with_scaling = [](config::RunPlan plan) {
      plan.train.scaling = {.initial = 0x1p26, .smallest = 1, .growth_interval = 2};
      return plan;
    };
    std::uint64_t updates = 0;
    const auto want = support::run_of(with_scaling(config::resolve(recipe_of(grid, "fp16", 20, "all_to_all"))),
                                      [&](train::Engine& engine, Index) {
                                        if (engine.world().rank() == 0) updates = engine.optimizer_state().updates;
                                      });
    EXPECT_LT(updates, 20U - 3U) << "some steps are skipped, also once graphs are launched";
    for (const auto& [name, plan] : graph_plans(grid, "fp16", 20, 3)) {
      SCOPED_TRACE(grid.name() + " " + name);
      support::expect_same(*trained(with_scaling(plan)), *want);
    }
  }
}

/// moe.overlap: rows of a quarter of the experts come first, the others travel beside their products.
TEST(MoeGraphLifecycle, RowsInTwoPartsHaveTheBitsOfEagerSteps) {
  for (const MoeGrid& grid : kLifeGrids) {
    for (const char* precision : {"fp32", "bf16"}) {
      const auto want = trained(config::resolve(recipe_of(grid, precision, 30, "all_to_all")));
      for (const GraphWay& way : support::kGraphWays) {
        SCOPED_TRACE(grid.name() + " " + precision + " " + way.name);
        config::RunConfig recipe = recipe_of(grid, precision, 30, "peer");
        recipe.moe.overlap = true;
        support::expect_same(*trained(support::with_graphs(config::resolve(recipe), way, 3)), *want);
      }
    }
  }
}

TEST(MoeGraphLifecycle, AStepThatDiffersIsNamedByTheOpInTheExperts) {
  for (const GraphWay& way : {support::kWholeSteps, support::kLayers, support::kLayersPerSlot}) {
    config::RunPlan plan = support::with_graphs(config::resolve(recipe_of({4, 1, 2, 2, 1}, "fp32", 8, "peer")), way,
                                                support::kCheckWarmup);
    plan.graphs.check_steps = 8;
    const support::HashedBatches source(plan.model.vocab_size);
    const std::string error = support::error_of([](int size, const auto& body) { comm::run_ranks(size, body); }, plan,
                                                [](train::Engine& engine, int rank, Index step) {
                                                  if (rank != 3 || step != support::kMeddled) return;
                                                  ParamSet& params = engine.stage().params();
                                                  std::swap(params.at("layers.2.moe.experts.up.weight").value,
                                                            params.at("layers.3.moe.experts.up.weight").value);
                                                },
                                                source);
    EXPECT_TRUE(error.starts_with("rank 3: step 6: [graph] training, chunk 0, microbatch 0, layer 2, op "))
        << way.name << ": " << error;
    EXPECT_NE(error.find("grouped_matmul"), std::string::npos) << way.name << ": " << error;
    EXPECT_NE(error.find("lies at another address than when captured"), std::string::npos) << way.name << ": " << error;
  }
}

}  // namespace
}  // namespace megalith
