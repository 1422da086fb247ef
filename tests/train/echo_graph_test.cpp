// Graphs of steps with clones of experts (docs/echo.md): the bits of eager steps.
#include <map>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/config/moe_rules.h"
#include "megalith/ops/elementwise.h"

#include "tests/comm/wrapped_world.h"
#include "tests/train/graph_run.h"
#include "tests/train/graph_ways.h"
#include "tests/train/moe_run.h"
#include "tests/train/recompute_modes.h"

namespace megalith {
namespace {

using capture::Scope;
using capture::ScopeSet;
using support::GraphWay;
using support::MoeGrid;

constexpr Index kEchoGraphSteps = 7, kEchoWarmup = 2, kManySteps = 50;

/// Routers that load the first experts more, and choose other ones in each step.
config::RunConfig echo_graph_config(const MoeGrid& grid, const char* weights, const char* backend,
                                    const std::string& precision = "fp32") {
  config::RunConfig c = support::moe_config(grid, {"", [](config::RunConfig& recipe) { recipe.moe.router_skew = 0.3; }},
                                            precision, kEchoGraphSteps);
  c.moe.dispatcher = "peer";
  c.moe.echo.slots = 2;
  c.moe.echo.min_pairs = 0;
  c.moe.echo.check_plan = 1;
  c.moe.echo.weights = weights;
  c.moe.echo.backend = backend;
  return c;
}

/// What a run leaves: losses, those of evaluations between the steps, clones, parameters.
struct EchoGraphRun {
  std::vector<double> losses, norms, evaluated;
  std::vector<std::string> loads;  ///< of each step
  std::map<std::string, std::vector<double>> parameters;
  Index launches = 0;
};

EchoGraphRun run_with_echo(const config::RunPlan& plan, void (*before_step)(train::Engine&, Index) = nullptr) {
  EchoGraphRun run;
  support::Gathered parameters;
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const support::HashedBatches source(plan.model.vocab_size);
    for (Index step = 0; step < plan.train.steps; ++step) {
      if (before_step != nullptr) before_step(engine, step);
      const train::StepReport report = engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
      const double evaluated = step % 2 == 1 ? engine.evaluate(source, 2 * plan.train.global_batch) : 0;
      if (world.rank() != 0) continue;
      run.losses.push_back(report.loss);
      run.norms.push_back(report.grad_norm);
      run.evaluated.push_back(evaluated);
      run.loads.push_back(std::regex_replace(report.moe.json(), std::regex("\"exposed_us\":[0-9.e+-]+"), ""));
    }
    const bool is_whole = plan.graphs.mode == capture::GraphMode::iteration;
    EXPECT_EQ(engine.train_graph().captured(), is_whole);
    EXPECT_EQ(engine.eval_graph().captured(), is_whole);
    engine.stage().gather_all_params(engine.exec());
    put_params(parameters, engine.stage(), false);
    if (world.rank() == 0) run.launches = engine.train_graph().launches().count();
  });
  run.parameters = parameters.tensors();
  return run;
}

void expect_same_echo_run(const EchoGraphRun& got, const EchoGraphRun& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.evaluated, want.evaluated);
  EXPECT_EQ(got.loads, want.loads);
  EXPECT_EQ(got.parameters, want.parameters);
}

/// What makes these tests of routing that changes: the clones of no two steps are the same.
void expect_changing_clones(const EchoGraphRun& run) {
  EXPECT_EQ(std::set(run.loads.begin(), run.loads.end()).size(), run.loads.size());
  for (const std::string& load : run.loads) EXPECT_THAT(load, ::testing::Not(::testing::HasSubstr("\"clones\":0,")));
}

/// ep 2 and 4; tp 2 with replicas and slices; stages, with chunks and a distributed optimizer.
constexpr MoeGrid kEchoGraphGrids[] = {{2, 1, 1, 2, 1},
                                       {4, 1, 1, 4, 1},
                                       {4, 2, 1, 2, 2},
                                       {4, 2, 1, 2, 1},
                                       {4, 1, 2, 2, 1},
                                       {4, 1, 2, 2, 1, 2},
                                       {4, 1, 2, 2, 1, 2, nn::SequenceParallel::off, Sharding::optimizer}};

class EchoGraphs : public ::testing::TestWithParam<MoeGrid> {};
INSTANTIATE_TEST_SUITE_P(Grids, EchoGraphs, ::testing::ValuesIn(kEchoGraphGrids),
                         [](const auto& test) { return test.param.name(); });

/// Every grid takes each way to move clones and each kind of graph, in other pairs.
TEST_P(EchoGraphs, HaveTheBitsOfEagerSteps) {
  struct Way {
    const char *weights, *backend;
  };
  std::size_t turn = GetParam().name().size();
  for (const Way& each :
       {Way{"keep", "auto"}, {"redispatch", "peer"}, {"keep", "collective"}, {"redispatch", "collective"}}) {
    const char* precision = turn % 3 == 0 ? "bf16" : "fp32";
    const GraphWay& way = turn++ % 2 == 0 ? support::kPasses : support::kWholeSteps;
    SCOPED_TRACE(str(each.weights, ' ', each.backend, ' ', way.name, ' ', precision));
    config::RunConfig recipe = echo_graph_config(GetParam(), each.weights, each.backend, precision);
    recipe.graphs.mode = "iteration";  // legal
    const config::RunPlan plan = config::resolve(recipe);
    config::RunPlan eager = plan;
    eager.graphs = {};
    const EchoGraphRun want = run_with_echo(eager);
    const EchoGraphRun got = run_with_echo(support::with_graphs(plan, way, kEchoWarmup));
    expect_same_echo_run(got, want);
    expect_changing_clones(want);
    EXPECT_EQ(got.launches, kEchoGraphSteps - kEchoWarmup);
  }
}

/// Recomputed layers send weights to slots again.
EchoGraphRun without_bytes(EchoGraphRun run) {
  for (std::string& load : run.loads) load = std::regex_replace(load, std::regex("\"bytes\":[0-9]+"), "");
  return run;
}

// A second pass in the graph takes the plan of the first one.
TEST(EchoGraph, HasTheBitsOfEagerStepsWhereLayersAreRecomputed) {
  for (const support::RecomputeWay& recompute : support::recompute_ways()) {
    SCOPED_TRACE(recompute.name);
    config::RunPlan plan = config::resolve(echo_graph_config({4, 1, 2, 2, 1, 2}, "redispatch", "auto"));
    const EchoGraphRun want = without_bytes(run_with_echo(plan));
    plan.recompute = recompute.config;
    const EchoGraphRun got = run_with_echo(support::with_graphs(plan, support::kWholeSteps, kEchoWarmup));
    expect_same_echo_run(without_bytes(got), want);
  }
}

/// Returns the eager run.
EchoGraphRun expect_bits_of_eager_steps(const config::RunPlan& plan) {
  const EchoGraphRun want = run_with_echo(plan);
  const EchoGraphRun got = run_with_echo(support::with_graphs(plan, support::kWholeSteps, kEchoWarmup));
  expect_same_echo_run(got, want);
  EXPECT_EQ(got.launches, plan.train.steps - kEchoWarmup);
  return want;
}

// Rank threads and their launches go on for long. Of four stages: one or two layers each, the latter as two chunks.
TEST_P(EchoGraphs, FiftyStepsHaveTheBitsOfEagerSteps) {
  config::RunConfig c = echo_graph_config(GetParam(), "redispatch", "auto");
  c.train.steps = kManySteps;
  expect_changing_clones(expect_bits_of_eager_steps(config::resolve(c)));
}
TEST(EchoGraph, FiftyStepsOfFourStagesHaveTheBitsOfEagerSteps) {
  for (const int chunks : {1, 2}) {
    config::RunConfig c = echo_graph_config({8, 1, 4, 2, 1, chunks}, "redispatch", "auto");
    c.train.steps = kManySteps;
    if (chunks == 2) c.model.num_layers = 8;
    expect_changing_clones(expect_bits_of_eager_steps(config::resolve(c)));
  }
}

constexpr Index kTurns = 4;
/// All rows choose one expert, in the next step one of another rank, then a third one, then each its own: whole experts
/// leave home, and slots are empty, full or hold another expert from launch to launch. Norms add 1 to numbers whose
/// mean is 0, so the sum of a row is positive.
void turn_router(train::Engine& engine, Index step) {
  for (ParamBuffer& buffer : engine.stage().params().buffers()) {
    for (Param& param : buffer.params()) {
      const std::string& name = param.spec.slice.name;
      if (name.find(".norm") != name.npos && name.ends_with(".bias")) ops::fill(engine.exec(), param.value, 1);
      if (!name.ends_with(".router.weight")) continue;
      ops::fill(engine.exec(), param.value, 0);
      const Index experts = param.value.dim(0), turn = step % kTurns;
      if (turn < 3) ops::fill(engine.exec(), param.value.rows(turn * 3 % experts, 1), 1);
      for (Index e = 0; turn == 3 && e < experts; ++e)
        param.value.rows(e, 1).span<float>()[static_cast<std::size_t>(e)] = 1;
    }
  }
}

TEST(EchoGraph, HotAndEmptyExpertsThatChangeFromLaunchToLaunch) {
  for (const MoeGrid& grid : {MoeGrid{2, 1, 1, 2, 1}, MoeGrid{4, 1, 1, 4, 1}, MoeGrid{4, 1, 2, 2, 1}}) {
    SCOPED_TRACE(grid.name());
    config::RunConfig c = echo_graph_config(grid, "keep", "auto");
    c.model.norm = "layer";
    c.moe.router_skew = 0;
    c.moe.top_k = 1;
    c.moe.rank_capacity_factor = "worst";
    c.moe.aux_loss = 0;
    c.train.steps = 3 * kTurns;
    const config::RunPlan plan = config::resolve(c);
    const EchoGraphRun want = run_with_echo(plan, turn_router);
    const EchoGraphRun got = run_with_echo(support::with_graphs(plan, support::kWholeSteps, kEchoWarmup), turn_router);
    expect_same_echo_run(got, want);
    EXPECT_THAT(want.loads[0], ::testing::HasSubstr("\"empty\":7"));
    EXPECT_THAT(want.loads[kTurns - 1], ::testing::Not(::testing::HasSubstr("\"empty\":7")));
  }
}

// All rows are spread evenly, whatever the router computes: room for the even share suffices.
TEST(EchoGraph, ForcedBalanceHasTheBitsOfEagerStepsWithoutSpareRows) {
  for (const MoeGrid& grid : {MoeGrid{2, 1, 1, 2, 1}, MoeGrid{4, 1, 1, 4, 1}, MoeGrid{4, 2, 1, 2, 2}}) {
    SCOPED_TRACE(grid.name());
    config::RunConfig c = support::moe_config(grid, {"", [](config::RunConfig&) {}}, "fp32", kManySteps);
    c.moe.dispatcher = "peer";
    c.moe.force_balance = true;
    c.moe.top_k = 4;  // ranks / top_k is at most 1
    c.moe.rank_capacity_factor = "1";
    const config::RunPlan plan = config::resolve(c);
    EXPECT_TRUE(plan.model.moe.rank_capacity_factor == nn::RankCapacity{1000});
    expect_bits_of_eager_steps(plan);
  }
}

// The first steps and evaluations from graphs are run again eagerly, op by op.
TEST(EchoGraph, AgreesWithCheckedSteps) {
  config::RunPlan plan = config::resolve(echo_graph_config({2, 1, 1, 2, 1}, "keep", "auto"));
  const EchoGraphRun want = run_with_echo(plan);
  plan = support::with_graphs(plan, support::kWholeSteps, kEchoWarmup);
  plan.graphs.check_steps = 2;
  expect_same_echo_run(run_with_echo(plan), want);
}

// Graphs of layers end before clones move, or hold whole layers where the host reads nothing.
TEST(EchoGraph, LayersHaveTheBitsOfEagerSteps) {
  const ScopeSet scopes[] = {{Scope::moe_router}, {Scope::attn, Scope::moe_router, Scope::moe_preprocess}, {}};
  for (const MoeGrid& grid : {MoeGrid{4, 1, 1, 4, 1}, MoeGrid{4, 1, 2, 2, 1, 2}, MoeGrid{4, 2, 1, 2, 2}}) {
    for (const char* backend : {"peer", "collective", "host_sized"}) {
      config::RunPlan plan = config::resolve(echo_graph_config(grid, "redispatch", backend));
      const EchoGraphRun want = run_with_echo(plan);
      for (const ScopeSet& set : scopes) {
        if (capture::first_broken_rule(set, plan.run_facts())) {
          EXPECT_STREQ(backend, "host_sized") << "only there the host reads the plan: " << text(set);
          continue;
        }
        for (const GraphWay& way : {support::kLayers, support::kLayersPerSlot}) {
          SCOPED_TRACE(str(grid.name(), ' ', backend, ' ', text(set), ' ', way.name));
          config::RunPlan graphs = support::with_graphs(plan, way, kEchoWarmup);
          graphs.graphs.scopes = set;
          expect_same_echo_run(run_with_echo(graphs), want);
        }
      }
    }
  }
}

/// Rank 1 sees other choices than the other ranks, from a call on.
class MisreadingInGraphs final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  comm::Ticket all_gather(const comm::Call& call, const void* in, void* out, Stream stream) override {
    const comm::Ticket ticket = inner().all_gather(call, in, out, stream);
    if (name() == "etp-ep" && call.dtype == DType::i32 && world_rank() == 1 && gathers_++ >= kFirst) {
      auto* const choices = static_cast<std::int32_t*>(out);
      for (int i = 0; i < 16; ++i) choices[i] = 7;
    }
    return ticket;
  }

 private:
  static constexpr int kFirst = 5 * 4 * 2;  ///< step 6, of 4 layers and 2 microbatches: two from the graph are equal
  int gathers_ = 0;
};

// The comparison is an op of the graph, and names where its plan was made.
TEST(EchoGraph, RanksWithAnotherPlanAreNamedInAStepFromTheGraph) {
  config::RunPlan plan = config::resolve(echo_graph_config({4, 1, 1, 4, 1}, "keep", "auto"));
  plan = support::with_graphs(plan, support::kPasses, kEchoWarmup);
  Index steps = 0;
  try {
    comm::run_ranks(4, [&](comm::World& world) {
      comm::WrappedWorld<MisreadingInGraphs> wrapped(world);
      train::Engine engine(wrapped, plan);
      engine.allocate();
      const support::HashedBatches source(plan.model.vocab_size);
      for (Index step = 0; step < plan.train.steps; ++step) {
        engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
        if (world.rank() == 0) ++steps;
      }
    });
    FAIL() << "nothing was thrown";
  } catch (const CollectiveError& error) {
    EXPECT_THAT(error.what(),
                ::testing::ContainsRegex("group etp-ep, chunk 0, microbatch 0, layer 0: the plan of clones differs on "
                                         "ranks 1 \\("));
  }
  EXPECT_EQ(steps, 5);
}

}  // namespace
}  // namespace megalith
