#include "megalith/train/graph_accounting.h"

#include <algorithm>
#include <numeric>

#include "megalith/train/metrics.h"

#include "tests/io/temp_dir.h"
#include "tests/train/graph_run.h"
#include "tests/train/moe_run.h"

namespace megalith::train {
namespace {

using capture::GraphMode;
using capture::GraphsPer;
using capture::Role;
using capture::TouchedMemory;
using megalith::support::Grid;

config::RunPlan plan_of(const Grid& grid, GraphMode mode, GraphsPer per = GraphsPer::microbatch) {
  config::RunPlan plan = megalith::support::small_plan(grid, "fp32", 10);
  plan.graphs.mode = mode;
  plan.graphs.per = per;
  plan.graphs.warmup_steps = 2;
  return plan;
}

constexpr std::size_t kScratch = 1;
static_assert(capture::kTouchedOwners[kScratch] == kScratchOwner);

/// The accounts of a run of ten steps and an evaluation.
std::vector<GraphAccount> accounts_of(const config::RunPlan& plan) {
  std::vector<GraphAccount> all;
  megalith::support::run_of(plan, [&](Engine& engine, Index) {
    const std::vector<GraphAccount> mine = account_for_graphs(engine, plan);
    if (engine.world().rank() == 0) all = mine;
  });
  return all;
}

/// Where the plan has a buffer of graphs in place of one of their own.
void expect_in_planned_places(const TouchedMemory& touched, const nn::LayerEdges& edges) {
  for (const capture::PlannedPlace& planned : capture::planned_places(edges)) {
    for (std::size_t owner = 0; owner < capture::kTouchedOwners.size(); ++owner) {
      if (touched.in(planned.role, owner) == 0) continue;
      EXPECT_EQ(std::ranges::count(planned.owners, capture::kTouchedOwners[owner]), 1)
          << name(planned.role) << " lies in " << capture::kTouchedOwners[owner];
    }
  }
  EXPECT_EQ(touched.in(Role::any, capture::kTouchedOwners.size() - 1), 0) << "elsewhere";
}

TEST(GraphAccounting, ARunCapturesWhatIsPlannedOnEveryRank) {
  for (const Grid& grid : {Grid{.tp = 2}, Grid{.pp = 4}, Grid{.tp = 2, .pp = 2, .chunks = 2}}) {
    for (const GraphsPer per : {GraphsPer::microbatch, GraphsPer::slot}) {
      SCOPED_TRACE(grid.name() + " " + std::string(name(per)));
      const config::RunPlan plan = plan_of(grid, GraphMode::layers, per);
      const std::vector<GraphAccount> all = accounts_of(plan);
      ASSERT_EQ(static_cast<int>(all.size()), grid.ranks());
      for (int rank = 0; rank < grid.ranks(); ++rank) {
        SCOPED_TRACE(str("rank ", rank));
        const GraphAccount& account = all[static_cast<std::size_t>(rank)];
        const PlannedGraphs planned = plan_graphs(plan, rank);
        const GraphPlan& way = per == GraphsPer::slot ? planned.per_slot : planned.per_microbatch;
        EXPECT_EQ(account.planned_graphs, way.training.graphs);
        EXPECT_EQ(account.graphs, account.planned_graphs);
        EXPECT_EQ(account.planned_launches, way.training.launches_per_step);
        EXPECT_EQ(account.launches, account.planned_launches);
        EXPECT_EQ(account.added_bytes, way.added_bytes);
        EXPECT_EQ(account.owned, planned.owned);
        EXPECT_GT(account.ops, 5 * account.graphs);
        EXPECT_GE(account.nodes, account.ops);
        EXPECT_GT(account.capture_s, 0);
        EXPECT_GT(account.launch_s, 0);
        EXPECT_EQ(account.scratch_bytes, planned.plan.at("scratch"));
        EXPECT_EQ(account.fragmentation_bytes, planned.fragmentation_bytes);
        EXPECT_GE(account.fragmentation_bytes, 0);
        EXPECT_LT(account.fragmentation_bytes, account.scratch_bytes);
        EXPECT_EQ(account.device_bytes, 0) << "the CPU's";
      }
    }
  }
}

void expect_planned_buffers(const GraphAccount& account, const config::RunPlan& plan) {
  const TouchedMemory& touched = account.touched;
  EXPECT_EQ(touched.inputs.count, account.owned.static_inputs);
  EXPECT_EQ(touched.inputs.bytes, account.owned.static_input_bytes);
  EXPECT_EQ(touched.second_inputs.count, 1);
  EXPECT_EQ(touched.second_inputs.bytes, account.owned.second_input_bytes);
  EXPECT_EQ(touched.output_grads.count, 1);
  EXPECT_EQ(touched.output_grads.bytes, account.owned.output_grad_bytes);
  EXPECT_LE(touched.outputs.bytes, account.owned.boundary_bytes);
  EXPECT_EQ(touched.outputs.bytes, touched.outputs.count * capture::input_bytes(layer_sizes(plan, 0)));
}

TEST(GraphAccounting, TheAddressesOfARunGiveThePlannedBuffers) {
  for (const Grid& grid :
       {Grid{}, Grid{.tp = 2}, Grid{.pp = 2}, Grid{.pp = 4}, Grid{.pp = 2, .chunks = 2}, Grid{.tp = 2, .pp = 2},
        Grid{.tp = 2, .pp = 2, .chunks = 2}, Grid{.tp = 2, .pp = 2, .sequence_parallel = nn::SequenceParallel::on},
        Grid{.dp = 2, .sharding = Sharding::optimizer, .shard = ShardedState::gradients}}) {
    for (const GraphsPer per : {GraphsPer::microbatch, GraphsPer::slot}) {
      SCOPED_TRACE(grid.name() + " " + std::string(name(per)));
      const config::RunPlan plan = plan_of(grid, GraphMode::layers, per);
      const Index size = capture::input_bytes(layer_sizes(plan, 0));
      for (const GraphAccount& account : accounts_of(plan)) {
        const TouchedMemory& touched = account.touched;
        expect_planned_buffers(account, plan);
        expect_in_planned_places(touched, captured_edges(plan, 0));
        // A layer's inputs are what the one below keeps for its backward and, in scratch, what its MLP gives.
        const auto& inputs = touched.bytes[static_cast<std::size_t>(Role::layer_input)];
        const auto& input_is = touched.shared[static_cast<std::size_t>(Role::layer_input)];
        const Index in_scratch = touched.in(Role::layer_input, kScratch);
        EXPECT_EQ(in_scratch % size, 0);
        EXPECT_GT(in_scratch, 0);
        EXPECT_EQ(input_is[static_cast<std::size_t>(Role::output)], in_scratch);
        EXPECT_EQ(input_is[static_cast<std::size_t>(Role::saved)] + in_scratch,
                  std::accumulate(inputs.begin(), inputs.end(), Index{0}));
        // What it hands down is as large as what it is handed.
        const auto& input_grads = touched.bytes[static_cast<std::size_t>(Role::input_grad)];
        for (const Index bytes : input_grads) EXPECT_EQ(bytes % size, 0);
        // A layer's passes each have two regions, which end (and with sequence parallelism also begin) with a call over
        // tp.
        EXPECT_GE(account.comm_calls, grid.tp == 1 ? 0 : 2 * account.launches);
        if (grid.sequence_parallel == nn::SequenceParallel::off) {
          EXPECT_EQ(account.comm_calls, grid.tp == 1 ? 0 : 2 * account.launches);
        }
      }
    }
  }
}

TEST(GraphAccounting, PartsOfLayersFindTheirsToo) {
  using capture::Scope;
  using capture::ScopeSet;
  for (const Grid& grid : {Grid{}, Grid{.pp = 2}, Grid{.tp = 2, .pp = 2, .chunks = 2},
                           Grid{.tp = 2, .pp = 2, .sequence_parallel = nn::SequenceParallel::on}}) {
    for (const GraphsPer per : {GraphsPer::microbatch, GraphsPer::slot}) {
      for (const ScopeSet& scopes : {ScopeSet{Scope::attn}, ScopeSet{Scope::mlp}, ScopeSet{Scope::attn, Scope::mlp}}) {
        SCOPED_TRACE(grid.name() + " " + std::string(name(per)) + " " + text(scopes));
        config::RunPlan plan = plan_of(grid, GraphMode::layers, per);
        plan.graphs.scopes = scopes;
        const bool ends_in_a_layer = !scopes.has(Scope::mlp), begins_in_a_layer = !scopes.has(Scope::attn);
        for (const GraphAccount& account : accounts_of(plan)) {
          const TouchedMemory& touched = account.touched;
          expect_planned_buffers(account, plan);
          expect_in_planned_places(touched, captured_edges(plan, 0));
          EXPECT_EQ(touched.in(Role::chunk_input, kScratch) > 0, begins_in_a_layer) << "attention's output";
          EXPECT_GT(touched.in(Role::layer_input, kScratch), 0) << "that, or what the MLP below gives";
          // The MLP part takes it at once, so it has a place for inner layers and perhaps one for a chunk's last.
          if (ends_in_a_layer) {
            EXPECT_LE(touched.outputs.count, 2);
          }
        }
      }
    }
  }
}

config::RunPlan plan_with_experts(const std::string& pattern, const capture::ScopeSet& scopes,
                                  const support::MoeGrid& grid = {}) {
  const support::MoeModel with_positions{"", [](config::RunConfig& of) { of.model.family = "gpt2"; }};
  config::RunConfig c = moe_config(grid, with_positions, "fp32", 5);
  c.moe.dispatcher = "all_to_all";
  c.moe.pattern = pattern;
  c.graphs.mode = "layers";
  c.graphs.scopes = scopes.names();
  c.graphs.warmup_steps = 2;
  return config::resolve(c);
}

TEST(GraphAccounting, LayersWithExpertsHaveGraphsOfTheirAttention) {
  using capture::Scope;
  const nn::LayerEdges attention{{0}, {1}}, whole{{0}, {2}}, mlp{{1}, {2}}, none;
  const config::RunPlan both = plan_with_experts("dm", {Scope::attn, Scope::mlp}),
                        rest = plan_with_experts("dm", {Scope::mlp});
  for (const Index layer : {0, 2}) {
    EXPECT_EQ(captured_edges(both, layer), whole);
    EXPECT_EQ(captured_edges(both, layer + 1), attention);
    EXPECT_EQ(captured_edges(rest, layer), mlp);
    EXPECT_EQ(captured_edges(rest, layer + 1), none);
  }
  for (const support::MoeGrid& grid : {support::MoeGrid{}, support::MoeGrid{.ranks = 4, .pp = 2, .ep = 2},
                                       support::MoeGrid{.ranks = 2, .pp = 2, .chunks = 2}}) {
    for (const auto& [pattern, scopes] : {std::pair{"dm", capture::ScopeSet{Scope::attn, Scope::mlp}},
                                          {"dm", {Scope::attn}},
                                          {"dm", {Scope::mlp}},
                                          {"ddm", {Scope::attn, Scope::mlp}},
                                          {"m", {Scope::attn}}}) {
      SCOPED_TRACE(grid.name() + " " + pattern + " " + text(scopes));
      const config::RunPlan plan = plan_with_experts(pattern, scopes, grid);
      const std::vector<GraphAccount> accounts = accounts_of(plan);
      for (int rank = 0; rank < grid.ranks; ++rank) {
        const GraphAccount& account = accounts[static_cast<std::size_t>(rank)];
        EXPECT_EQ(account.graphs, account.planned_graphs);
        EXPECT_EQ(account.launches, account.planned_launches);
        EXPECT_EQ(account.planned_graphs, plan_graphs(plan, rank).per_microbatch.training.graphs);
        EXPECT_EQ(account.owned, plan_graphs(plan, rank).owned);
        EXPECT_EQ(account.touched.inputs.count, account.owned.static_inputs);
        EXPECT_EQ(account.touched.inputs.bytes, account.owned.static_input_bytes);
        EXPECT_EQ(account.touched.second_inputs.bytes, account.owned.second_input_bytes);
        EXPECT_EQ(account.touched.output_grads.bytes, account.owned.output_grad_bytes);
        EXPECT_LE(account.touched.outputs.bytes, account.owned.boundary_bytes);
      }
    }
  }
}

/// The edge of a graph in the middle of an MoE: as many inputs as planned. The gradients that come back are of less
/// than planned: of the weights of K choices, where the plan has the probabilities of all experts.
TEST(GraphAccounting, GraphsThatEndInExpertsFindTheirsToo) {
  using capture::Scope;
  for (const support::MoeGrid& grid :
       {support::MoeGrid{.ranks = 2, .ep = 2}, support::MoeGrid{.ranks = 4, .pp = 2, .ep = 2},
        support::MoeGrid{.ranks = 4, .pp = 2, .ep = 2, .chunks = 2}}) {
    for (const capture::ScopeSet& scopes :
         {capture::ScopeSet{Scope::attn, Scope::moe_router}, capture::ScopeSet{Scope::moe_router},
          capture::ScopeSet{Scope::attn, Scope::moe_router, Scope::moe_preprocess},
          capture::ScopeSet{Scope::attn, Scope::mlp, Scope::moe_router, Scope::moe_preprocess}}) {
      for (const char* pattern : {"m", "dm"}) {
        if (scopes.has(Scope::mlp) && pattern == std::string_view("m")) continue;  // rule V6
        SCOPED_TRACE(grid.name() + " " + pattern + " " + text(scopes));
        const config::RunPlan plan = plan_with_experts(pattern, scopes, grid);
        const std::vector<GraphAccount> accounts = accounts_of(plan);
        for (int rank = 0; rank < grid.ranks; ++rank) {
          const GraphAccount& account = accounts[static_cast<std::size_t>(rank)];
          const PlannedGraphs planned = plan_graphs(plan, rank);
          EXPECT_EQ(account.graphs, planned.per_microbatch.training.graphs);
          EXPECT_EQ(account.launches, planned.per_microbatch.training.launches_per_step);
          EXPECT_EQ(account.owned, planned.owned);
          EXPECT_EQ(account.touched.inputs.count, account.owned.static_inputs);
          EXPECT_EQ(account.touched.inputs.bytes, account.owned.static_input_bytes);
          EXPECT_EQ(account.touched.second_inputs.bytes, account.owned.second_input_bytes);
          EXPECT_EQ(account.touched.output_grads.bytes > 0, account.graphs > 0);
          EXPECT_LE(account.touched.output_grads.bytes, account.owned.output_grad_bytes);
          EXPECT_LE(account.touched.outputs.bytes, account.owned.boundary_bytes);
          if (pattern == std::string_view("m")) expect_in_planned_places(account.touched, captured_edges(plan, 0));
        }
      }
    }
  }
}

TEST(GraphAccounting, SizesGoByLayer) {
  using capture::Scope;
  config::RunConfig c =
      support::moe_config({.ranks = 4, .tp = 2, .ep = 2, .etp = 1}, {"", [](config::RunConfig&) {}}, "bf16", 5);
  c.moe.pattern = "dm";
  c.moe.shared_ffn_hidden_size = 8;
  const Index rows = 2 * 16, experts = 8, top_k = 2;
  capture::LayerSizes dense = layer_sizes(config::resolve(c), 0), moe = layer_sizes(config::resolve(c), 1);
  EXPECT_EQ(dense, (capture::LayerSizes{.tokens = rows, .hidden_size = 20, .activation_bytes = 2}));
  EXPECT_EQ(moe, (capture::LayerSizes{.tokens = rows,
                                      .hidden_size = 20,
                                      .activation_bytes = 2,
                                      .routed_tokens = rows / 2,
                                      .num_experts = experts,
                                      .top_k = top_k,
                                      .permuted_rows = rows / 2 * top_k,
                                      .shared_experts = true}))
      << "tensor-parallel ranks route shares";
  c.moe.capacity = "pad";
  c.moe.capacity_factor = 1;
  c.moe.capacity_run = 8;
  EXPECT_EQ(layer_sizes(config::resolve(c), 1).permuted_rows, experts * 2 * (8 * top_k / experts));
  c.parallel.etp = 2;
  c.parallel.sequence_parallel = true;
  EXPECT_EQ(layer_sizes(config::resolve(c), 1).permuted_rows, 2 * experts * 2 * (8 * top_k / experts)) << "two slices";
}

TEST(GraphAccounting, AnIterationIsOneGraphAndAnEvaluationOneMore) {
  // Two batches are evaluated, eagerly: they are the evaluation's warm-up.
  config::RunPlan plan = plan_of({.pp = 2}, GraphMode::iteration);
  GraphAccount account = accounts_of(plan).front();
  EXPECT_EQ(account.graphs, 1);
  EXPECT_EQ(account.planned_graphs, 1);
  EXPECT_EQ(account.launches, 1);
  EXPECT_GT(account.added_bytes, 0);
  EXPECT_GT(account.launch_s, 0);
  EXPECT_EQ(account.touched.inputs.count, 0) << "of layers";
  EXPECT_EQ(account.touched.in(Role::any, capture::kTouchedOwners.size() - 1), 0) << "elsewhere";
  const Index comm_calls = account.comm_calls;
  EXPECT_EQ(comm_calls, 2 * 8 + 1) << "a message forward and one backward a microbatch, and the tied table's sum";
  plan.graphs.warmup_steps = 1;
  account = accounts_of(plan).front();
  EXPECT_EQ(account.graphs, 2);
  EXPECT_EQ(account.planned_graphs, 2);
  EXPECT_EQ(account.launches, 1);
  EXPECT_EQ(account.comm_calls, comm_calls) << "of a training step";
}

TEST(GraphAccounting, TheTablesHaveRankZeroAndThoseThatDiffer) {
  const auto at = [](Role role) { return static_cast<std::size_t>(role); };
  TouchedMemory touched{.inputs = {4, 2048},
                        .second_inputs = {1, 512},
                        .outputs = {3, 384},
                        .saved = {9, 4096},
                        .output_grads = {1, 1024}};
  touched.bytes[at(Role::layer_input)][0] = 1536;
  touched.bytes[at(Role::output)][0] = 1536;
  touched.bytes[at(Role::output)][2] = 512;
  touched.bytes[at(Role::any)][0] = 8192;
  touched.shared[at(Role::layer_input)][at(Role::output)] = 1536;
  touched.shared[at(Role::output)][at(Role::layer_input)] = 1536;
  GraphAccount account{.planned_graphs = 64,
                       .planned_launches = 128,
                       .owned = {.static_inputs = 4,
                                 .static_input_bytes = 2048,
                                 .second_input_bytes = 512,
                                 .output_grad_bytes = 1024,
                                 .boundary_bytes = 512},
                       .added_bytes = 4096,
                       .scratch_bytes = 8192,
                       .fragmentation_bytes = 256,
                       .graphs = 64,
                       .launches = 128,
                       .ops = 900,
                       .nodes = 1000,
                       .comm_calls = 96,
                       .touched = touched,
                       .device_bytes = Index{3} << 20,
                       .capture_s = 0.25,
                       .instantiate_s = 0.125,
                       .launch_s = 50e-6};
  GraphAccount slower = account, other = account;
  slower.capture_s = 1;
  other.graphs = 60;
  other.launch_s = 0;
  other.touched.inputs = {3, 1536};
  EXPECT_TRUE(slower.is_like(account));
  GraphAccount elsewhere = account;
  ++elsewhere.touched.inputs.count;
  EXPECT_FALSE(elsewhere.is_like(account));
  EXPECT_EQ(graphs_tables({account, slower, other}, GraphMode::layers),
            "rank    graphs    launches  comm calls  ops  nodes  plan adds   scratch  fragmentation  driver took  "
            "capture  instantiate  launch\n"
            "   0  64 of 64  128 of 128          96  900   1000   4.00 KiB  8.00 KiB          256 B     3.00 MiB   250 "
            "ms       125 ms   50 us\n"
            "   2  60 of 64  128 of 128          96  900   1000   4.00 KiB  8.00 KiB          256 B     3.00 MiB   250 "
            "ms       125 ms       -\n"
            "like rank 0: 1 more\n"
            "Comm calls are the collectives and messages that a step's launches hold. Scratch lies in the plan and is "
            "shared by all graphs; fragmentation is what of it no tensor holds when they hold most; launch is the "
            "host's time to launch a step, - before the first.\n"
            "\n"
            "Buffers at the edges of graphs, most at once, by the addresses that captured ops touch; of those that "
            "graphs with buffers of their own would take\n"
            "rank  static inputs                 bytes    second input      output gradients        boundary  "
            "kept for backward\n"
            "   0         4 of 4  2.00 KiB of 2.00 KiB  512 B of 512 B  1.00 KiB of 1.00 KiB  384 B of 512 B  "
            "         4.00 KiB\n"
            "   2         3 of 4  1.50 KiB of 2.00 KiB  512 B of 512 B  1.00 KiB of 1.00 KiB  384 B of 512 B  "
            "         4.00 KiB\n"
            "All lie in the plan, beside which graphs add what \"plan adds\" lists.\n"
            "\n"
            "Where graphs of rank 0 find what they touch, bytes over a step; like it: 2 more\n"
            "to graphs            lies in                                       is also\n"
            "input of a layer     activations 1.50 KiB                          output of a layer 1.50 KiB\n"
            "output of a layer    activations 1.50 KiB, pipeline buffers 512 B  input of a layer 1.50 KiB\n"
            "all that is touched  activations 8.00 KiB                          -\n");
  GraphAccount iteration = account;
  iteration.touched = {};
  iteration.touched.bytes[at(Role::any)][0] = 8192;
  iteration.touched.bytes[at(Role::any)][3] = 512;
  EXPECT_EQ(graphs_tables({iteration}, GraphMode::iteration),
            "rank    graphs    launches  comm calls  ops  nodes  plan adds   scratch  fragmentation  driver took  "
            "capture  instantiate  launch\n"
            "   0  64 of 64  128 of 128          96  900   1000   4.00 KiB  8.00 KiB          256 B     3.00 MiB   250 "
            "ms       125 ms   50 us\n"
            "Comm calls are the collectives and messages that a step's launches hold. Scratch lies in the plan and is "
            "shared by all graphs; fragmentation is what of it no tensor holds when they hold most; launch is the "
            "host's time to launch a step, - before the first.\n"
            "\n"
            "Where graphs of rank 0 find what they touch, bytes over a step\n"
            "to graphs            lies in                             is also\n"
            "all that is touched  activations 8.00 KiB, inputs 512 B  -\n");
  other.touched.bytes[at(Role::output)].back() = 1;
  const std::string apart = graphs_tables({account, slower, other}, GraphMode::layers);
  EXPECT_NE(apart.find("\nWhere graphs of rank 0 find what they touch, bytes over a step; like it: 1 more\n"),
            std::string::npos)
      << apart;
  EXPECT_NE(apart.find("\nWhere graphs of rank 2 find what they touch, bytes over a step\n"), std::string::npos)
      << apart;
}

TEST(GraphAccounting, TheLogHasALineThatAResumedRunDropsOrKeeps) {
  const TempDir dir;
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  const io::Path file = dir / "metrics.jsonl";
  MetricsLog(*fs, file, 0)
      .write_graphs(
          4, {.scratch_bytes = 6,
              .fragmentation_bytes = 5,
              .graphs = 2,
              .launches = 1,
              .ops = 7,
              .nodes = 8,
              .comm_calls = 3,
              .touched = {.inputs = {1, 10}, .second_inputs = {1, 13}, .outputs = {1, 12}, .output_grads = {1, 11}},
              .device_bytes = 9});
  const auto text = [&] { return std::string(fs->map(file).text()); };
  const std::string line =
      "{\"graphs\":2,\"step\":4,\"launches\":1,\"comm_calls\":3,\"ops\":7,\"nodes\":8,"
      "\"static_input_bytes\":10,\"second_input_bytes\":13,\"output_grad_bytes\":11,\"boundary_bytes\":12,\"scratch_"
      "bytes\":6,\"fragmentation_"
      "bytes\":5,"
      "\"device_bytes\":9,"
      "\"capture_s\":0,\"instantiate_s\":0,\"launch_s\":0}\n";
  EXPECT_EQ(text(), line);
  MetricsLog(*fs, file, 4);
  EXPECT_EQ(text(), line);
  MetricsLog(*fs, file, 3);
  EXPECT_EQ(text(), "");
}

}  // namespace
}  // namespace megalith::train
