#include "megalith/capture/layer_graphs.h"

#include "tests/support/count_allocations.h"
#include "tests/train/graph_run.h"

// Steps whose layers run from graphs, against eager ones: the same bits, whatever the grid, the scopes and what graphs
// are for.
namespace megalith {
namespace {

using capture::GraphsPer;
using capture::Scope;
using capture::ScopeSet;
using support::expect_same;
using support::Grid;

config::RunPlan eager_plan(const Grid& grid, const std::string& precision, Index steps) {
  return support::small_plan(grid, precision, steps);
}

config::RunPlan with_graphs(config::RunPlan plan, const ScopeSet& scopes, GraphsPer per) {
  plan.graphs.mode = capture::GraphMode::layers;
  plan.graphs.scopes = scopes;
  plan.graphs.per = per;
  plan.graphs.warmup_steps = 2;
  return plan;
}

config::RunPlan plan_of(const Grid& grid, const std::string& precision, const ScopeSet& scopes, GraphsPer per,
                        Index steps) {
  return with_graphs(eager_plan(grid, precision, steps), scopes, per);
}

std::unique_ptr<support::GraphRun> eager(const config::RunPlan& plan) {
  return support::run_of(plan, [](const train::Engine&, Index) {});
}

/// The pieces that a step must launch, by plan: along the schedule, a chunk's layers upwards forward and downwards
/// backward.
std::vector<GraphCache::Key> planned_order(const model::Stage& stage, const capture::RankLayers& layers,
                                           GraphsPer per) {
  std::vector<GraphCache::Key> order;
  for (const pipeline::LoweredAction& action : stage.schedule().actions) {
    const bool forward = action.act == pipeline::Act::forward;
    if (!forward && action.act != pipeline::Act::backward) continue;
    const int count = layers.per_chunk[static_cast<std::size_t>(action.chunk)];
    const grid::LayerRange range = stage.chunks()[static_cast<std::size_t>(action.chunk)].range().layers;
    const int instance = per == GraphsPer::slot ? action.slot : layers.shape.num_stages == 1 ? 0 : action.microbatch;
    for (int i = 0; i < count; ++i)
      order.push_back({action.chunk, instance, range.begin + (forward ? i : count - 1 - i), forward ? 0 : 1});
  }
  return order;
}

/// Also: the graphs are as many as planned, and every step after the warm-up launches each layer's for each microbatch,
/// in the order of the schedule.
std::unique_ptr<support::GraphRun> from_graphs(const config::RunPlan& plan) {
  return support::run_of(plan, [&](train::Engine& engine, Index) {
    model::Stage& stage = engine.stage();
    capture::RankLayers layers{
        {stage.mesh().pp.size(), plan.chunks, model::num_microbatches(stage.config(), stage.mesh()), plan.group_size,
         pipeline::ScheduleMode::training},
        stage.mesh().pp_rank(),
        {}};
    for (const model::Chunk& chunk : stage.chunks())
      layers.per_chunk.push_back(static_cast<int>(chunk.range().layers.size()));
    const capture::GraphCounts counts = count_graphs(layers, stage.schedule(), plan.graphs.per);
    EXPECT_EQ(engine.layer_graphs().stats().graphs, counts.graphs);
    EXPECT_EQ(engine.layer_graphs().order(), planned_order(stage, layers, plan.graphs.per));
    EXPECT_EQ(engine.layer_graphs().launches().count(),
              counts.launches_per_step * (plan.train.steps - plan.graphs.warmup_steps - 1))
        << "the step that captures runs eagerly";
  });
}

class LayerGraphGrid : public ::testing::TestWithParam<Grid> {};

TEST_P(LayerGraphGrid, FiftyStepsFromGraphsHaveTheBitsOfEagerOnes) {
  const auto want = eager(eager_plan(GetParam(), "fp32", 50));
  for (const GraphsPer per : {GraphsPer::microbatch, GraphsPer::slot}) {
    SCOPED_TRACE(name(per));
    expect_same(*from_graphs(plan_of(GetParam(), "fp32", {}, per, 50)), *want);
  }
}

INSTANTIATE_TEST_SUITE_P(All, LayerGraphGrid, ::testing::ValuesIn(support::graph_grids()),
                         [](const auto& test) { return test.param.name(); });

TEST(LayerGraphs, AllScopesHaveTheBitsOfEagerSteps) {
  for (const Grid& grid :
       {Grid{}, Grid{.tp = 2, .pp = 2}, Grid{.pp = 2, .chunks = 2}, Grid{.pp = 4, .chunks = 2},
        Grid{.dp = 2, .sharding = Sharding::optimizer}, Grid{.tp = 2, .sequence_parallel = nn::SequenceParallel::on},
        Grid{.tp = 2, .pp = 2, .sequence_parallel = nn::SequenceParallel::on}}) {
    // A sharded optimizer's parameters are whole after an evaluation, that of step 10.
    const Index steps = grid.sharding == Sharding::none ? 12 : 10;
    for (const double dropout : {0.1, 0.0}) {
      const auto with_dropout = [dropout](config::RunPlan plan) {
        plan.model.dropout = dropout;
        return plan;
      };
      const auto want = eager(with_dropout(eager_plan(grid, "bf16", steps)));
      for (const ScopeSet& scopes : {ScopeSet{Scope::attn}, ScopeSet{Scope::mlp}, ScopeSet{Scope::attn, Scope::mlp}}) {
        for (const GraphsPer per : {GraphsPer::microbatch, GraphsPer::slot}) {
          SCOPED_TRACE(str(grid.name(), " ", text(scopes), " ", name(per), ", dropout ", dropout));
          const auto got = from_graphs(with_dropout(plan_of(grid, "bf16", scopes, per, steps)));
          support::expect_same_training(*got, *want);
          if (grid.sharding == Sharding::none) support::expect_same_gradients(*got, *want);
        }
      }
    }
  }
}

TEST(LayerGraphs, UnevenStagesAndASingleMicrobatchHaveTheBitsOfEagerSteps) {
  for (const auto& [name, plan] : support::uneven_plans("fp32", 12)) {
    const auto want = eager(plan);
    for (const ScopeSet& scopes : {ScopeSet{}, ScopeSet{Scope::attn}}) {
      for (const GraphsPer per : {GraphsPer::microbatch, GraphsPer::slot}) {
        SCOPED_TRACE(str(name, ", ", text(scopes), " ", capture::name(per)));
        expect_same(*from_graphs(with_graphs(plan, scopes, per)), *want);
      }
    }
  }
}

TEST(LayerGraphs, AShardedOptimizersStepsHaveTheBitsOfEagerPlainOnes) {
  for (Grid grid : {Grid{.dp = 2}, Grid{.pp = 2, .dp = 2, .chunks = 2}}) {
    const auto plain = eager(eager_plan(grid, "bf16", 50));
    grid.sharding = Sharding::optimizer;
    for (const GraphsPer per : {GraphsPer::microbatch, GraphsPer::slot}) {
      SCOPED_TRACE(grid.name() + " " + std::string(name(per)));
      // The last step is followed by an evaluation, which gathers the parameters.
      support::expect_same_training(*from_graphs(plan_of(grid, "bf16", {}, per, 50)), *plain);
    }
  }
}

TEST(LayerGraphs, HoldSubMicrobatches) {
  const auto in_halves = [](config::RunPlan plan) {
    plan.train.micro_batch = 4;
    plan.tp_overlap = config::TpOverlap::halves;
    EXPECT_EQ(plan.sub_batches(), 2);
    return plan;
  };
  for (const Grid& grid :
       {Grid{.tp = 2}, Grid{.tp = 2, .pp = 2}, Grid{.tp = 2, .pp = 2, .sequence_parallel = nn::SequenceParallel::on},
        Grid{.tp = 2, .sequence_parallel = nn::SequenceParallel::on}, Grid{.tp = 2, .pp = 2, .chunks = 4},
        Grid{.tp = 2, .dp = 2, .sharding = Sharding::optimizer}}) {
    const auto want = eager(in_halves(eager_plan(grid, "bf16", 10)));
    for (const ScopeSet& scopes : {ScopeSet{}, ScopeSet{Scope::attn}, ScopeSet{Scope::mlp}}) {
      for (const GraphsPer per : {GraphsPer::microbatch, GraphsPer::slot}) {
        SCOPED_TRACE(grid.name() + " " + text(scopes) + " " + std::string(name(per)));
        const auto got = from_graphs(in_halves(plan_of(grid, "bf16", scopes, per, 10)));
        support::expect_same_training(*got, *want);
        if (grid.sharding == Sharding::none) support::expect_same_gradients(*got, *want);
      }
    }
  }
}

TEST(LayerGraphs, SumsOfAHalfRunBesideTheOthersWork) {
  config::RunPlan plan = plan_of({.tp = 2}, "fp32", {}, GraphsPer::microbatch, 4);
  plan.train.micro_batch = 4;
  plan.tp_overlap = config::TpOverlap::halves;
  const std::string work = "matmul attention matmul all_reduce ", attention = "norm " + work,
                    attention_behind = "residual_norm " + work, mlp = "residual_norm matmul_gelu ",
                    down = "matmul all_reduce ", add_up = "bias_dropout_residual ";
  support::run_of(plan, [&](train::Engine& engine, Index) {
    const auto ops_of = [&engine](Index layer) {
      std::string ops;
      for (const Graph::Touched& op : engine.layer_graphs().graph({0, 0, layer, 0}).touched()) {
        if (op.op != "poison") ops += str(op.op, " ");  // debug builds put that in
      }
      return ops;
    };
    // Half by half: what one has sent is awaited when the other has worked; so the second ends in the next layer's
    // graph.
    const std::string mlps = "wait " + mlp + down + "wait " + mlp, end_before = down + attention_behind;
    const Index last = plan.model.num_layers - 1;
    EXPECT_EQ(ops_of(0), attention + attention + mlps + "wait ");
    for (Index layer = 1; layer < last; ++layer)
      EXPECT_EQ(ops_of(layer), end_before + "wait " + attention_behind + mlps + "wait ") << layer;
    EXPECT_EQ(ops_of(last),
              end_before + "wait " + attention_behind + mlps + down + "wait " + add_up + "wait " + add_up);
  });
}

TEST(LayerGraphs, ReplaceGradientsWhereTheyServeNoLaterMicrobatch) {
  struct Case {
    const char* name;
    Grid grid;
    GraphsPer per;
    Index microbatches;
    bool replaces;  ///< the graph of the first microbatch, or of the only slot
  };
  constexpr Case kCases[] = {{"one microbatch", {}, GraphsPer::microbatch, 1, true},
                             {"one microbatch, per slot", {}, GraphsPer::slot, 1, true},
                             {"a graph for all", {}, GraphsPer::microbatch, 4, false},
                             {"a graph each", {.pp = 2}, GraphsPer::microbatch, 4, true},
                             {"slots that are used again", {.pp = 2}, GraphsPer::slot, 4, false}};
  for (const Case& c : kCases) {
    config::RunPlan plan = plan_of(c.grid, "bf16", {}, c.per, 4);
    plan.train.micro_batch = plan.train.global_batch / c.microbatches;
    support::run_of(plan, [&](train::Engine& engine, Index) {
      // A product that adds to its result reads it.
      const auto products_that_add = [&](int instance) {
        int count = 0;
        const GraphCache::Key key{0, instance, engine.stage().chunks()[0].range().layers.begin,
                                  GraphCache::Key::kBackward};
        for (const Graph::Touched& op : engine.layer_graphs().graph(key).touched()) {
          const auto is_written = [&op](const Tensor& read) { return read && read.raw() == op.writes[0].raw(); };
          count += op.op == "matmul" && std::ranges::any_of(op.reads, is_written) ? 1 : 0;
        }
        return count;
      };
      constexpr int kWeights = 4;
      EXPECT_EQ(products_that_add(0), c.replaces ? 0 : kWeights) << c.name;
      if (c.per == GraphsPer::microbatch && c.grid.pp > 1) {
        EXPECT_EQ(products_that_add(1), kWeights) << c.name;
      }
    });
  }
}

TEST(LayerGraphs, NeedNoWarmup) {
  const Grid grid{.tp = 2, .pp = 2};
  const auto want = eager(eager_plan(grid, "bf16", 12));
  for (const Index warmup : {0, 1}) {
    for (const GraphsPer per : {GraphsPer::microbatch, GraphsPer::slot}) {
      config::RunPlan plan = plan_of(grid, "bf16", {}, per, 12);
      plan.graphs.warmup_steps = warmup;
      expect_same(*from_graphs(plan), *want);
    }
  }
}

TEST(LayerGraphs, TakeWhatThePlanSaysAndALaunchAllocatesNothing) {
  for (const GraphsPer per : {GraphsPer::microbatch, GraphsPer::slot}) {
    const config::RunPlan plan = plan_of({.tp = 2, .pp = 2}, "fp32", {}, per, 6);
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
      const std::unique_ptr<comm::World> dry = comm::dry_world(world.rank(), world.size());
      const BytesByOwner planned = train::Engine(*dry, plan).planned_bytes();
      train::Engine engine(world, plan);
      engine.allocate();
      EXPECT_EQ(engine.taken_bytes(), planned);
      const support::HashedBatches source(plan.model.vocab_size);
      for (Index step = 0; step < plan.train.steps; ++step) {
        const support::CountAllocations counter;
        engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
        if (step <= plan.graphs.warmup_steps + 1) continue;  // debug builds check the one after the capture
        EXPECT_EQ(counter.count(), 0) << "rank " << world.rank() << ", step " << step;
      }
    });
  }
}

}  // namespace
}  // namespace megalith
