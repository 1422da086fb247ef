#include "megalith/train/graph_accounting.h"

#include "megalith/train/metrics.h"

#include "tests/io/temp_dir.h"
#include "tests/train/graph_run.h"

namespace megalith::train {
namespace {

using capture::GraphMode;
using capture::GraphsPer;
using megalith::testing::Grid;

config::RunPlan plan_of(const Grid& grid, GraphMode mode, GraphsPer per = GraphsPer::microbatch) {
  config::RunPlan plan = megalith::testing::small_plan(grid, "fp32", 10);
  plan.graphs.mode = mode;
  plan.graphs.per = per;
  plan.graphs.warmup_steps = 2;
  return plan;
}

/// Of a run of ten steps and an evaluation.
std::vector<GraphAccount> accounts_of(const config::RunPlan& plan) {
  std::vector<GraphAccount> all;
  megalith::testing::run_of(plan, [&](Engine& engine, Index) {
    const std::vector<GraphAccount> mine = account_for_graphs(engine, plan);
    if (engine.world().rank() == 0) all = mine;
  });
  return all;
}

TEST(GraphAccounting, ARunCapturesWhatIsPlannedOnEveryRank) {
  for (const Grid& grid : {Grid{.tp = 2}, Grid{.pp = 4}, Grid{.tp = 2, .pp = 2, .chunks = 2}}) {
    for (const GraphsPer per : {GraphsPer::microbatch, GraphsPer::slot}) {
      SCOPED_TRACE(grid.name() + " " + std::string(name(per)));
      const config::RunPlan plan = plan_of(grid, GraphMode::layers, per);
      const std::vector<GraphAccount> all = accounts_of(plan);
      ASSERT_EQ(static_cast<int>(all.size()), grid.ranks());
      for (int rank = 0; rank < grid.ranks(); ++rank) {
        const GraphAccount& account = all[static_cast<std::size_t>(rank)];
        const PlannedGraphs planned = plan_graphs(plan, rank);
        EXPECT_EQ(account.planned_graphs, planned.of(plan.graphs).training.graphs);
        EXPECT_EQ(account.graphs, account.planned_graphs);
        EXPECT_EQ(account.launches, account.planned_launches);
        EXPECT_EQ(account.static_inputs, planned.owned.static_input_bytes);
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

TEST(GraphAccounting, AnIterationIsOneGraphAndAnEvaluationOneMore) {
  // Two batches are evaluated, eagerly: they are the evaluation's warm-up.
  config::RunPlan plan = plan_of({.pp = 2}, GraphMode::iteration);
  GraphAccount account = accounts_of(plan).front();
  EXPECT_EQ(account.graphs, 1);
  EXPECT_EQ(account.planned_graphs, 1);
  EXPECT_EQ(account.launches, 1);
  EXPECT_GT(account.added_bytes, 0);
  EXPECT_GT(account.launch_s, 0);
  plan.graphs.warmup_steps = 1;
  account = accounts_of(plan).front();
  EXPECT_EQ(account.graphs, 2);
  EXPECT_EQ(account.planned_graphs, 2);
  EXPECT_EQ(account.launches, 1);
}

TEST(GraphAccounting, TheTableHasRankZeroAndThoseThatDiffer) {
  GraphAccount account{.planned_graphs = 64,
                       .planned_launches = 128,
                       .static_inputs = 2048,
                       .output_grads = 1024,
                       .boundary = 512,
                       .added_bytes = 4096,
                       .scratch_bytes = 8192,
                       .fragmentation_bytes = 256,
                       .graphs = 64,
                       .launches = 128,
                       .ops = 900,
                       .nodes = 1000,
                       .device_bytes = Index{3} << 20,
                       .capture_s = 0.25,
                       .instantiate_s = 0.125,
                       .launch_s = 50e-6};
  GraphAccount slower = account, other = account;
  slower.capture_s = 1;
  other.graphs = 60;
  other.launch_s = 0;
  EXPECT_TRUE(slower.is_like(account));
  const std::string of_layers = graphs_table({account, slower, other}, GraphMode::layers),
                    of_iteration = graphs_table({account}, GraphMode::iteration);
  EXPECT_EQ(
      of_layers,
      "rank    graphs    launches  ops  nodes  plan adds  static inputs  output gradients  boundary   scratch  "
      "fragmentation  driver took  capture  instantiate  launch\n"
      "   0  64 of 64  128 of 128  900   1000   4.00 KiB       2.00 KiB          1.00 KiB     512 B  8.00 KiB  "
      "        256 B     3.00 MiB   250 ms       125 ms   50 us\n"
      "   2  60 of 64  128 of 128  900   1000   4.00 KiB       2.00 KiB          1.00 KiB     512 B  8.00 KiB  "
      "        256 B     3.00 MiB   250 ms       125 ms       -\n"
      "like rank 0: 1 more\n"
      "Scratch lies in the plan and is shared by all graphs; fragmentation is what of it no tensor holds when they "
      "hold most; launch is the host's time to launch a step, - before the first.\n"
      "Static inputs, output gradients and boundary lie in the plan, beside which graphs add what \"plan adds\" "
      "says.\n");
  EXPECT_EQ(
      of_iteration,
      "rank    graphs    launches  ops  nodes  plan adds   scratch  fragmentation  driver took  capture  instantiate  "
      "launch\n"
      "   0  64 of 64  128 of 128  900   1000   4.00 KiB  8.00 KiB          256 B     3.00 MiB   250 ms       125 ms   "
      "50 us\n"
      "Scratch lies in the plan and is shared by all graphs; fragmentation is what of it no tensor holds when they "
      "hold most; launch is the host's time to launch a step, - before the first.\n");
}

TEST(GraphAccounting, TheLogHasALineThatAResumedRunDropsOrKeeps) {
  const TempDir dir;
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  const io::Path file = dir / "metrics.jsonl";
  MetricsLog(*fs, file, 0)
      .write_graphs(4, {.scratch_bytes = 6,
                        .fragmentation_bytes = 5,
                        .graphs = 2,
                        .launches = 1,
                        .ops = 7,
                        .nodes = 8,
                        .device_bytes = 9});
  const auto text = [&] { return std::string(fs->map(file).text()); };
  const std::string line =
      "{\"graphs\":2,\"step\":4,\"launches\":1,\"ops\":7,\"nodes\":8,\"scratch_bytes\":6,\"fragmentation_bytes\":5,"
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
