// Graphs of whole iterations of models with experts: the bits of eager steps. Where no rank sends rows to another;
// where ranks read each other's rows; with padding on any grid.
#include "tests/io/temp_dir.h"
#include "tests/train/graph_ways.h"
#include "tests/train/moe_run.h"
#include "tests/train/saved_run.h"

namespace megalith {
namespace {

using support::GraphWay;
using support::MoeGrid;

constexpr Index kGraphedSteps = 50, kGraphSavedAt = 23;

/// The run, or the run in two halves with a checkpoint between.
support::SavedRun trained_and_saved(const config::RunPlan& plan, bool resumes) {
  return support::trained_in_parts(
      plan, resumes ? std::vector<Index>{kGraphSavedAt, kGraphedSteps} : std::vector<Index>{kGraphedSteps});
}

class MoeGraphs : public ::testing::TestWithParam<MoeGrid> {};
INSTANTIATE_TEST_SUITE_P(Grids, MoeGraphs,
                         ::testing::Values(MoeGrid{}, MoeGrid{2, 2, 1, 1, 2}, MoeGrid{2, 1, 2, 1, 1},
                                           MoeGrid{4, 1, 2, 1, 1, 2, nn::SequenceParallel::off, Sharding::optimizer}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(MoeGraphs, HaveTheBitsOfEagerSteps) {
  for (const support::MoeModel& model : support::moe_models()) {
    const bool is_short = std::string_view(model.name).starts_with("Shared") || model.name == std::string_view("Top1");
    for (const char* precision : {"fp32", "bf16"}) {
      if (is_short && precision == std::string_view("bf16")) continue;
      SCOPED_TRACE(std::string(model.name) + " " + precision);
      const config::RunPlan eager = config::resolve(support::moe_config(GetParam(), model, precision, kGraphedSteps));
      const support::SavedRun want = trained_and_saved(eager, false);
      for (const GraphWay& way : {support::kPasses, support::kWholeSteps})
        support::expect_same(trained_and_saved(support::with_graphs(eager, way, 3), way.optimizer), want);
    }
  }
}

// ---- ranks that read each other's rows ------------------------------------------------------------------------------

constexpr support::MoeModel kRead[] = {{"Dropless", [](config::RunConfig& c) { c.moe.z_loss = 0.01; }},
                                       {"DropSharedMixed", [](config::RunConfig& c) {
                                          c.moe.pattern = "dm";
                                          c.moe.capacity = "drop";
                                          c.moe.capacity_factor = 1.0;
                                          c.moe.capacity_run = 4;
                                          c.moe.shared_ffn_hidden_size = 8;
                                          c.moe.shared_gate = true;
                                        }}};

/// ep 2 and 4; tp 2 with replicas, with shares of rows and with sequence parallelism; stages, with chunks; etp without
/// tp.
constexpr MoeGrid kReadingGrids[] = {
    {2, 1, 1, 2, 1}, {4, 1, 1, 4, 1},   {4, 2, 1, 2, 2}, {4, 2, 1, 2, 1}, {4, 2, 1, 2, 2, 1, nn::SequenceParallel::on},
    {2, 1, 1, 1, 2}, {4, 1, 2, 2, 1, 2}};

class PeerMoeGraphs : public ::testing::TestWithParam<MoeGrid> {};
INSTANTIATE_TEST_SUITE_P(Grids, PeerMoeGraphs, ::testing::ValuesIn(kReadingGrids),
                         [](const auto& test) { return test.param.name(); });

/// A grid takes each model in one of the precisions; bf16 as whole steps, across a checkpoint.
TEST_P(PeerMoeGraphs, HaveTheBitsOfEagerSteps) {
  const MoeGrid& grid = GetParam();
  bool is_wide = (grid.ranks / 2 + grid.tp + grid.etp) % 2 == 0;
  for (const support::MoeModel& model : kRead) {
    const char* precision = is_wide ? "fp32" : "bf16";
    SCOPED_TRACE(std::string(model.name) + " " + precision);
    config::RunConfig recipe = support::moe_config(grid, model, precision, kGraphedSteps);
    recipe.moe.dispatcher = "all_to_all";
    const support::SavedRun want = trained_and_saved(config::resolve(recipe), false);
    recipe.moe.dispatcher = "peer";
    recipe.graphs.mode = "iteration";  // legal
    const config::RunPlan peers = config::resolve(recipe);
    const GraphWay& way = is_wide ? support::kPasses : support::kWholeSteps;
    support::expect_same(trained_and_saved(support::with_graphs(peers, way, 3), !is_wide), want);
    is_wide = !is_wide;
  }
}

// One expert has all tokens, the others none: a rank of experts has all rows of the group, or nothing to multiply.
TEST(ExtremeMoeGraphs, HaveTheBitsOfEagerSteps) {
  const support::MoeModel one_has_all{"OneHasAll", [](config::RunConfig& c) {
                                        c.moe.top_k = 1;
                                        c.moe.router_skew = 50;
                                        c.moe.aux_loss = 0;
                                      }};
  for (const MoeGrid& grid : {MoeGrid{}, MoeGrid{4, 1, 1, 4, 1}, MoeGrid{4, 2, 1, 2, 2}}) {
    SCOPED_TRACE(grid.name());
    config::RunConfig recipe = support::moe_config(grid, one_has_all, "bf16", kGraphedSteps);
    if (grid.ranks > 1) recipe.moe.rank_capacity_factor = "worst";
    const config::RunPlan eager = config::resolve(recipe);
    const auto source = support::batches_of(support::MoeText::hashed, eager.model.vocab_size);
    comm::run_ranks(grid.ranks, [&](comm::World& world) {
      train::Engine engine(world, eager);
      engine.allocate();
      for (const train::ExpertLoad& load : engine.step(*source, {}, train::Stop::no).moe.layers)
        EXPECT_EQ(load.empty, 7) << "layer " << load.layer;
    });
    const support::SavedRun want = trained_and_saved(eager, false);
    for (const GraphWay& way : {support::kPasses, support::kWholeSteps})
      support::expect_same(trained_and_saved(support::with_graphs(eager, way, 3), false), want);
  }
}

// ---- padded experts, whose rows cross between ranks -----------------------------------------------------------------

constexpr support::MoeModel kPadded[] = {{"Pad",
                                          [](config::RunConfig& c) {
                                            c.moe.dispatcher = "all_to_all";
                                            c.moe.capacity = "pad";
                                            c.moe.capacity_factor = 1.0;
                                            c.moe.capacity_run = 4;
                                          }},
                                         {"PadSharedMixed", [](config::RunConfig& c) {
                                            c.moe.pattern = "dm";
                                            c.moe.capacity = "pad";
                                            c.moe.capacity_factor = 1.25;
                                            c.moe.capacity_run = 8;
                                            c.moe.shared_ffn_hidden_size = 8;
                                            c.moe.shared_gate = true;
                                            c.moe.z_loss = 0.01;
                                          }}};

/// ep 2 and 4; tp 2 with slices, with shares of rows and with sequence parallelism; stages, with chunks; etp without
/// tp; a distributed optimizer.
constexpr MoeGrid kPaddedGrids[] = {{2, 1, 1, 2, 1},
                                    {4, 1, 1, 4, 1},
                                    {4, 2, 1, 2, 2},
                                    {4, 2, 1, 2, 1},
                                    {4, 2, 1, 2, 2, 1, nn::SequenceParallel::on},
                                    {4, 1, 1, 1, 2},
                                    {4, 1, 2, 2, 1},
                                    {4, 1, 2, 2, 1, 2},
                                    {8, 2, 2, 2, 2, 2, nn::SequenceParallel::on, Sharding::optimizer}};

class PaddedMoeGraphs : public ::testing::TestWithParam<MoeGrid> {};
INSTANTIATE_TEST_SUITE_P(Grids, PaddedMoeGraphs, ::testing::ValuesIn(kPaddedGrids),
                         [](const auto& test) { return test.param.name(); });

TEST_P(PaddedMoeGraphs, HaveTheBitsOfEagerStepsAlsoAcrossACheckpoint) {
  for (const support::MoeModel& model : kPadded) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(model.name) + " " + precision);
      const config::RunPlan eager = config::resolve(support::moe_config(GetParam(), model, precision, kGraphedSteps));
      const support::SavedRun want = trained_and_saved(eager, false);
      const bool is_wide = precision == std::string_view("fp32");
      const GraphWay& way = is_wide ? support::kPasses : support::kWholeSteps;
      support::expect_same(trained_and_saved(support::with_graphs(eager, way, 3), !is_wide), want);
    }
  }
}

/// What makes the test above one of routing that changes: no two microbatches of a step send as many rows to each
/// expert.
TEST(PaddedMoe, EveryMicrobatchIsRoutedInItsOwnWay) {
  const config::RunPlan plan = config::resolve(support::moe_config(kPaddedGrids[0], kPadded[0], "fp32", 8));
  support::KeptDecisions decisions(plan, nn::RouterDecisions::Use::record);
  support::RunRecord record;
  support::run_moe(plan, record, &decisions);
  const auto pairs = static_cast<std::size_t>(plan.train.micro_batch * plan.model.seq_len * plan.model.moe.top_k);
  std::vector<std::vector<int>> counts;
  for (std::size_t first = 0; first < decisions.all().size(); first += pairs) {
    std::vector<int>& of = counts.emplace_back(static_cast<std::size_t>(plan.model.moe.num_experts));
    for (std::size_t i = first; i < first + pairs; ++i) {
      const std::int32_t expert = decisions.all()[i];
      ++of[static_cast<std::size_t>(expert < 0 ? ~expert : expert)];
    }
  }
  for (std::size_t i = 1; i < counts.size(); ++i) EXPECT_NE(counts[i], counts[i - 1]) << "microbatch " << i;
}

TEST(PaddedMoe, EvaluatesEagerlyWhereRowsAreSent) {
  struct Case {
    MoeGrid grid;
    const char* dispatcher;
    bool sends;
  };
  for (const Case& each : {Case{{}, "all_to_all", false}, Case{kPaddedGrids[0], "all_to_all", true},
                           Case{kPaddedGrids[0], "peer", false}}) {
    config::RunConfig recipe = support::moe_config(each.grid, kPadded[0], "fp32", 6);
    recipe.moe.dispatcher = each.dispatcher;
    const config::RunPlan plan = support::with_graphs(config::resolve(recipe), support::kPasses, 2);
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      const support::HashedBatches source(plan.model.vocab_size);
      for (Index step = 0; step < 4; ++step) {
        engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
        engine.evaluate(source, plan.train.global_batch);
      }
      EXPECT_TRUE(engine.train_graph().captured());
      EXPECT_EQ(engine.eval_graph().captured(), !each.sends);
    });
  }
}

}  // namespace
}  // namespace megalith
