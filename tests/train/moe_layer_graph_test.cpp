// Steps whose layers run from graphs, of models with experts: the bits of eager steps, whatever the grid, the scopes,
// the capacity and the shared experts.
#include "megalith/base/error.h"
#include "megalith/config/moe_rules.h"
#include "megalith/train/graph_accounting.h"

#include "tests/io/temp_dir.h"
#include "tests/support/sweep.h"
#include "tests/train/graph_run.h"
#include "tests/train/graph_ways.h"
#include "tests/train/moe_run.h"
#include "tests/train/recompute_modes.h"
#include "tests/train/saved_run.h"

namespace megalith {
namespace {

using capture::GraphsPer;
using capture::Scope;
using capture::ScopeSet;
using support::MoeGrid;

const std::vector<ScopeSet>& scope_sets() {
  using enum Scope;
  static const std::vector<ScopeSet> all = {{attn},
                                            {attn, mlp},
                                            {moe},
                                            {moe_router},
                                            {mlp, moe_router},
                                            {attn, moe_router, moe_preprocess},
                                            {attn, mlp, moe_router, moe_preprocess},
                                            {}};
  return all;
}

enum class Shared : std::uint8_t { none, plain, gated };

struct ScopedModel {
  const char* capacity;  ///< of moe.capacity
  Shared shared;
  const char* pattern = "ddmm";
};

config::RunConfig config_of(const MoeGrid& grid, const ScopedModel& model, const std::string& precision, Index steps) {
  config::RunConfig c = support::moe_config(grid, {"", [](config::RunConfig&) {}}, precision, steps);
  if (grid.pp * grid.chunks > 4) c.model.num_layers = grid.pp * grid.chunks;
  c.moe.pattern = model.pattern;
  c.moe.z_loss = 0.01;
  c.moe.capacity = model.capacity;
  if (model.capacity != std::string_view("none")) {
    c.moe.capacity_factor = 1.25;
    c.moe.capacity_run = 8;
  }
  // With peer no host reads sizes, so whole layers and whole experts can be captured.
  c.moe.dispatcher = model.shared == Shared::plain ? "peer" : "all_to_all";
  if (model.shared != Shared::none) c.moe.shared_ffn_hidden_size = 8;
  c.moe.shared_gate = model.shared == Shared::gated;
  return c;
}

config::RunPlan scoped(config::RunPlan plan, const ScopeSet& scopes, GraphsPer per) {
  plan.graphs.mode = capture::GraphMode::layers;
  plan.graphs.scopes = scopes;
  plan.graphs.per = per;
  plan.graphs.warmup_steps = 3;
  return plan;
}

bool is_legal(const config::RunPlan& plan, const ScopeSet& scopes) {
  return !capture::first_broken_rule(scopes, plan.run_facts());
}

std::unique_ptr<support::GraphRun> eager_run(const config::RunPlan& plan) {
  return support::run_of(plan, [](const train::Engine&, Index) {});
}

/// Also: each rank has as many graphs as planned, and launches them as often.
std::unique_ptr<support::GraphRun> scoped_run(const config::RunPlan& plan) {
  return support::run_of(plan, [&](train::Engine& engine, Index) {
    const train::PlannedGraphs planned = train::plan_graphs(plan, engine.world().rank());
    const capture::GraphCounts& counts =
        (plan.graphs.per == GraphsPer::slot ? planned.per_slot : planned.per_microbatch).training;
    EXPECT_EQ(engine.layer_graphs().stats().graphs, counts.graphs);
    EXPECT_EQ(engine.layer_graphs().launches().count(),
              counts.launches_per_step * (plan.train.steps - plan.graphs.warmup_steps - 1));
  });
}

class MoeLayerGraphs : public ::testing::TestWithParam<MoeGrid> {};
INSTANTIATE_TEST_SUITE_P(Grids, MoeLayerGraphs,
                         ::testing::Values(MoeGrid{}, MoeGrid{2, 1, 1, 2, 1}, MoeGrid{4, 1, 1, 4, 1},
                                           MoeGrid{4, 2, 1, 2, 2}, MoeGrid{4, 2, 1, 2, 1},
                                           MoeGrid{4, 2, 1, 2, 2, 1, nn::SequenceParallel::on}, MoeGrid{4, 1, 2, 2, 1},
                                           MoeGrid{4, 1, 2, 2, 1, 2}, MoeGrid{4, 1, 4, 1, 1, 2},
                                           MoeGrid{4, 1, 2, 2, 1, 2, nn::SequenceParallel::off, Sharding::optimizer}),
                         [](const auto& test) { return test.param.name(); });

/// A sample takes each eleventh of the sets of scopes for each capacity, kind of shared experts and kind of graphs;
/// every grid takes others.
TEST_P(MoeLayerGraphs, FiftyStepsHaveTheBitsOfEagerOnes) {
  constexpr Index kSteps = 50;
  const auto stride = static_cast<std::size_t>(support::sweep_stride(11));
  std::size_t turn = GetParam().name().size(), runs = 0;
  for (const char* capacity : {"none", "drop", "pad"}) {
    for (const Shared shared : {Shared::none, Shared::plain, Shared::gated}) {
      const char* precision = (turn + static_cast<std::size_t>(shared)) % 2 == 0 ? "fp32" : "bf16";
      const config::RunPlan plan = config::resolve(config_of(GetParam(), {capacity, shared}, precision, kSteps));
      std::unique_ptr<support::GraphRun> want;
      for (const ScopeSet& scopes : scope_sets()) {
        if (!is_legal(plan, scopes)) continue;
        for (const GraphsPer per : {GraphsPer::microbatch, GraphsPer::slot}) {
          if (turn++ % stride != 0) continue;
          SCOPED_TRACE(
              str(capacity, ", shared ", static_cast<int>(shared), ", ", precision, " ", text(scopes), " ", name(per)));
          if (!want) want = eager_run(plan);
          const auto got = scoped_run(scoped(plan, scopes, per));
          support::expect_same_training(*got, *want);
          if (GetParam().sharding == Sharding::none) support::expect_same_gradients(*got, *want);
          ++runs;
        }
      }
    }
  }
  EXPECT_GT(runs, 8U);
}

/// What recipes leave out is what rules forbid: of all sets of the test above.
TEST(MoeLayerGraph, ScopesThatAreLegal) {
  const auto legal = [](const MoeGrid& grid, const char* capacity, Shared shared = Shared::none) {
    const config::RunPlan plan = config::resolve(config_of(grid, {capacity, shared}, "fp32", 1));
    return std::ranges::count_if(scope_sets(), [&](const ScopeSet& scopes) { return is_legal(plan, scopes); });
  };
  for (const char* capacity : {"none", "drop", "pad"}) EXPECT_EQ(legal({}, capacity), 8) << capacity;
  const MoeGrid crossing{2, 1, 1, 2, 1};
  EXPECT_EQ(legal(crossing, "none"), 6);
  EXPECT_EQ(legal(crossing, "drop"), 4);
  EXPECT_EQ(legal(crossing, "pad"), 8);
  for (const char* capacity : {"none", "drop", "pad"}) EXPECT_EQ(legal(crossing, capacity, Shared::plain), 8) << "peer";
}

TEST(MoeLayerGraph, HaveTheBitsAcrossACheckpoint) {
  constexpr Index kSteps = 30;
  for (const char* capacity : {"none", "pad"}) {
    const config::RunPlan plan =
        config::resolve(config_of({4, 1, 2, 2, 1, 2}, {capacity, Shared::gated, "m"}, "bf16", kSteps));
    const support::SavedRun want = support::trained_in_parts(plan, {kSteps});
    for (const ScopeSet& scopes :
         {ScopeSet{Scope::attn, Scope::moe_router, Scope::moe_preprocess}, ScopeSet{Scope::moe_router}})
      support::expect_same(support::trained_in_parts(scoped(plan, scopes, GraphsPer::microbatch), {13, kSteps}), want);
  }
}

/// Where rule V12 allows it: recomputed layers lie wholly in a graph or wholly outside, norms on both sides.
TEST(MoeLayerGraph, RecomputeInAndBesideGraphs) {
  for (const char* capacity : {"none", "pad"}) {
    std::vector<support::RecomputeWay> ways = support::recompute_ways();
    ways.push_back({"dispatch", support::selective({nn::RecomputeModule::dispatch})});
    for (const support::RecomputeWay& way : ways) {
      config::RunPlan plan = config::resolve(config_of({2, 1, 1, 2, 1}, {capacity, Shared::gated, "dm"}, "fp32", 8));
      plan.recompute = way.config;
      const auto want = eager_run(plan);
      for (const ScopeSet& scopes : scope_sets()) {
        if (!is_legal(plan, scopes)) continue;
        SCOPED_TRACE(str(capacity, " ", way.name, " ", text(scopes)));
        support::expect_same(*scoped_run(scoped(plan, scopes, GraphsPer::microbatch)), *want);
      }
    }
  }
}

/// Every graph, op by op, against an eager pass of the same step.
TEST(MoeLayerGraph, CheckedStepsAgree) {
  for (const char* capacity : {"none", "pad"}) {
    config::RunPlan plan = config::resolve(config_of({2, 1, 1, 2, 1}, {capacity, Shared::gated, "dm"}, "bf16", 8));
    plan = scoped(plan, {Scope::attn, Scope::moe_router, Scope::moe_preprocess}, GraphsPer::microbatch);
    plan.graphs.check_steps = 3;
    support::run_of(plan, [](const train::Engine& engine, Index) { EXPECT_EQ(engine.steps_checked(), 3); });
  }
}

/// The rules on scopes spare users what a capture would find: the host reads sizes in the middle of an MoE. Plans that
/// resolve() would refuse.
TEST(MoeLayerGraph, ACaptureRefusesAHostThatReadsSizes) {
  for (const ScopeSet& scopes : {ScopeSet{}, ScopeSet{Scope::moe}}) {
    const config::RunPlan plan =
        scoped(config::resolve(config_of({2, 1, 1, 2, 1}, {"none", Shared::none, "m"}, "fp32", 6)), scopes,
               GraphsPer::microbatch);
    ASSERT_FALSE(is_legal(plan, scopes));
    std::string text = "nothing was thrown";
    try {
      eager_run(plan);
    } catch (const InternalError& error) {
      text = error.what();
    }
    EXPECT_NE(text.find("layer 0: Exec::copy: copies from and to the host stay outside of graphs"), std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace megalith
