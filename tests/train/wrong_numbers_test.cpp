// Steps whose numbers are not finite or far above those before, and replicas that differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/ops/masters.h"
#include "megalith/train/first_op.h"
#include "megalith/train/replica_check.h"

#include "tests/train/error_on_ranks.h"
#include "tests/train/moe_run.h"
#include "tests/train/recompute_modes.h"
#include "tests/train/skipped_steps.h"

namespace megalith {
namespace {

using support::Grid;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Multiplies the first number of a parameter on the ranks that hold it.
void scale_first_number(train::Engine& engine, std::string_view name, double factor) {
  Param* const param = engine.stage().params().find(name);
  if (param == nullptr) return;
  const MasterValues first = param->masters.rows(0, 1);
  float value = 0;
  const Tensor number(&value, {1}, DType::f32);
  ops::read_masters(engine.exec(), first, number);
  value *= static_cast<float>(factor);
  ops::write_masters(engine.exec(), number, first);
}

/// Rank -1: all that hold the parameter.
std::string error_of_nan_in(const Grid& grid, const std::vector<const char*>& names, int rank = -1) {
  const config::RunPlan plan = support::small_plan(grid, "fp32", 4);
  return support::error_on_ranks(plan, [&](train::Engine& engine) {
    const support::HashedBatches source(plan.model.vocab_size);
    engine.step(source, {0, 0}, train::Stop::no);
    for (const char* name : names)
      if (rank < 0 || engine.world().rank() == rank)
        scale_first_number(engine, name, std::numeric_limits<double>::quiet_NaN());
    engine.step(source, {1, plan.train.global_batch}, train::Stop::no);
  });
}

TEST(WrongNumbers, AStopNamesTheFirstParameterAndTheFirstOp) {
  EXPECT_THAT(error_of_nan_in({.pp = 2}, {"layers.5.mlp.up.weight"}),
              ContainsRegex("; on rank 1 layers.5.mlp.up.weight = nan; first in [^ ]+ .forward, chunk 0, microbatch 0, "
                            "layer 5. on rank 1; parameters stay those of step 1"));
  EXPECT_THAT(error_of_nan_in({.tp = 2}, {"layers.6.mlp.up.weight", "layers.2.norm2.bias"}),
              ContainsRegex("seen on rank 0, 1; on rank 0 layers.2.norm2.bias = nan; first in [^ ]+ .forward, chunk "
                            "0, microbatch 0, layer 2. on rank 0; "));
  EXPECT_THAT(error_of_nan_in({.tp = 2, .pp = 2}, {"layers.5.mlp.up.weight"}, 3),
              ContainsRegex("; on rank 3 layers.5.mlp.up.weight = nan; first in [^ ]+ .forward, chunk 0, microbatch 0, "
                            "layer 5. on rank 3; "))
      << "rank 2 meets it in the same layer, after the all-reduce";
}

/// Plans of all that writes results: families, losses, precisions, recomputation.
std::vector<config::RunPlan> plans_of_all_ops() {
  std::vector<config::RunPlan> plans;
  const auto add = [&](const Grid& grid, const char* precision, void (*set)(config::RunConfig&)) {
    config::RunConfig c = support::small_config(grid, precision, 4);
    set(c);
    plans.push_back(config::resolve(c));
  };
  const auto gpt = [](config::RunConfig&) {};
  for (const char* precision : {"fp32", "bf16", "fp16", "fp64"}) add({}, precision, gpt);
  add({}, "fp8", [](config::RunConfig& c) { c.model.hidden_size = c.model.ffn_hidden_size = 128; });
  add({.tp = 4}, "bf16", gpt);
  add({.tp = 2, .sequence_parallel = nn::SequenceParallel::on}, "bf16", gpt);
  add({.pp = 2, .chunks = 2}, "fp32", gpt);
  add({.dp = 2, .sharding = Sharding::optimizer}, "bf16", gpt);
  add({.tp = 2, .pp = 2}, "bf16", [](config::RunConfig& c) { c.model.family = "bert"; });
  add({.tp = 2}, "fp32", [](config::RunConfig& c) { c.model.norm_placement = "post"; });
  add({.tp = 2}, "bf16", [](config::RunConfig& c) {
    c.model.family = "llama";
    c.model.num_kv_heads = 2;
    c.model.head_dim = 6;
  });
  plans.push_back(support::small_plan({.tp = 2}, "bf16", 4));
  plans.back().recompute = support::full(nn::RecomputeMethod::uniform, 1);
  return plans;
}

// A step that is finite writes no such number anywhere, or another op would be named. Memory is NaN before an op writes
// it, so that an op that writes a part of its result would be named, too.
TEST(WrongNumbers, NoOpOfAFiniteStepIsNamed) {
  for (const config::RunPlan& plan : plans_of_all_ops()) {
    const std::string error = support::error_on_ranks(plan, [&](train::Engine& engine) {
      engine.exec().poison_new_tensors();
      train::FirstOpFinder finder(engine.stage(), 60);
      const support::HashedBatches source(plan.model.vocab_size);
      engine.exec().watched(finder, [&] { EXPECT_TRUE(engine.step(source, {0, 0}, train::Stop::no).finite); });
      EXPECT_EQ(finder.found().text, "") << config::grid_text(plan) << ", " << plan.train.precision;
    });
    EXPECT_THAT(error, IsEmpty());
  }
}

// The gradients of one rank are NaN from the loss on. Its last layer is where its backward pass begins.
TEST(WrongNumbers, AStopNamesTheGradientWhereBackwardBegins) {
  for (const auto& [grid, rank] : {std::pair{Grid{.pp = 2}, 1}, {Grid{.dp = 1}, 0}}) {
    const config::RunPlan plan = support::small_plan(grid, "fp32", 4);
    const std::string error = support::error_on_ranks(plan, [&, of = rank](train::Engine& engine) {
      if (engine.world().rank() == of) support::break_gradients(engine);
      engine.step(support::HashedBatches(plan.model.vocab_size), {0, 0}, train::Stop::no);
    });
    EXPECT_THAT(error, ContainsRegex(str("; on rank ", rank,
                                         " the gradient of final_norm.weight = nan; first in "
                                         "[^ ]+ .(forward|backward), chunk 0, microbatch 0. on rank ",
                                         rank)));
  }
}

/// All gradients and most activations are NaN, but no parameter is: products of queries and keys overflow. By the
/// copies that layers read, which run_past() mends. For a rank of the first stage.
void break_scores(train::Engine& engine) {
  ops::fill(engine.exec(), engine.stage().params().at("layers.0.attention.qkv.weight").value, 1e30);
}

config::RunPlan skipping_plan(config::RunConfig c) {
  c.train.on_nonfinite = "skip";
  return config::resolve(c);
}

/// Runs in which a step is skipped go on with the bits of runs that never had it, on every rank: eager, and from
/// graphs.
void expect_no_trace(const config::RunPlan& plan, const std::vector<support::Broken>& all,
                     const std::vector<capture::GraphsConfig>& ways = {}) {
  const auto on_threads = [](int size, const std::function<void(comm::World&)>& body) { comm::run_ranks(size, body); };
  const std::vector<support::Kept> want = support::run_past(on_threads, plan, std::nullopt);
  for (const support::Broken& broken : all) {
    support::expect_same_steps(support::run_past(on_threads, plan, broken), want);
    for (const capture::GraphsConfig& graphs : ways) {
      SCOPED_TRACE(support::name_of(graphs));
      config::RunPlan from_graphs = plan;
      from_graphs.graphs = graphs;
      support::expect_same_steps(support::run_past(on_threads, from_graphs, broken), want);
    }
  }
}

TEST(WrongNumbers, ASkippedStepLeavesNoTrace) {
  for (const Grid& grid :
       {Grid{.dp = 2, .sharding = Sharding::optimizer}, Grid{.tp = 2, .pp = 2}, Grid{.pp = 2, .chunks = 2},
        Grid{.dp = 2, .sharding = Sharding::optimizer, .shard = ShardedState::gradients}}) {
    SCOPED_TRACE(grid.name());
    const config::RunPlan plan = skipping_plan(support::small_config(grid, "bf16", 8));
    expect_no_trace(plan, {support::broken_gradients(grid.ranks() - 1)}, support::graph_ways());
    expect_no_trace(plan, {{0, break_scores}}, {support::graphs_of(support::kWholeSteps, support::kWarmupSteps)});
  }
}

/// Operands in E4M3 keep NaN, so the step is skipped; the next ones round what the layers' copies then hold.
TEST(WrongNumbers, ASkippedStepLeavesNoTraceInFp8) {
  for (const Grid& grid : {Grid{.tp = 2}, Grid{.dp = 2, .sharding = Sharding::optimizer}}) {
    SCOPED_TRACE(grid.name());
    config::RunConfig c = support::small_config(grid, "fp8", 8);
    c.model.num_layers = 2;
    c.model.hidden_size = c.model.ffn_hidden_size = 256;
    c.model.seq_len = 32;
    c.train.micro_batch = 4;
    c.fp8.weight_grad = true;
    expect_no_trace(skipping_plan(c), {support::broken_gradients(grid.ranks() - 1), {0, break_scores}},
                    {support::graphs_of(support::kWholeSteps, support::kWarmupSteps)});
  }
}

TEST(WrongNumbers, ASkippedStepLeavesNoTraceInTheStateOfOptimizers) {
  for (const bool is_muon : {false, true}) {
    for (const Grid& grid : {Grid{.tp = 2, .dp = 2}, Grid{.dp = 2, .sharding = Sharding::optimizer}}) {
      SCOPED_TRACE(grid.name() + (is_muon ? " muon" : " moments in bf16"));
      config::RunConfig c = support::small_config(grid, "bf16", 8);
      if (is_muon)
        c.optimizer.type = "muon";
      else
        c.optimizer.moments = "bf16";
      expect_no_trace(skipping_plan(c), {support::broken_gradients(grid.ranks() - 1), {0, break_scores}},
                      {support::graphs_of(support::kWholeSteps, support::kWarmupSteps)});
    }
  }
}

// Biases and shares of routers that rules update; routers that choose among NaN; two reduction groups.
TEST(WrongNumbers, ASkippedStepLeavesNoTraceInExperts) {
  for (const char* name : {"SigmoidWithBias", "GlobalLoss"}) {
    const auto model = std::ranges::find(support::moe_models(), std::string_view(name), &support::MoeModel::name);
    const bool has_bias = std::string_view(name) == "SigmoidWithBias";
    const support::MoeGrid grid =
        has_bias ? support::MoeGrid{4, 1, 2, 2, 1}
                 : support::MoeGrid{4, 2, 1, 2, 1, 1, nn::SequenceParallel::off, Sharding::optimizer};
    SCOPED_TRACE(std::string(name) + " " + grid.name());
    config::RunConfig c = support::moe_config(grid, *model, "bf16", 8);
    if (!has_bias) c.optimizer.type = "muon";
    expect_no_trace(skipping_plan(c), {support::broken_gradients(grid.ranks - 1), {0, break_scores}},
                    {support::graphs_of(support::kLayers, support::kWarmupSteps)});
  }
}

// Its losses are divided by the terms of the batch, which are counted one step before.
TEST(WrongNumbers, ASkippedStepOfBertLeavesNoTrace) {
  config::RunConfig c = support::small_config({.tp = 2, .pp = 2}, "bf16", 8);
  c.model.family = "bert";
  c.bert.mask_fraction = 0.5;
  expect_no_trace(skipping_plan(c), {{0, break_scores}},
                  {support::graphs_of(support::kWholeSteps, support::kWarmupSteps)});
}

/// No later step could be finite, so skipping ends.
TEST(WrongNumbers, ABrokenParameterEndsARunThatSkips) {
  config::RunPlan plan = support::small_plan({.pp = 2}, "fp32", 4);
  plan.train.on_nonfinite = ops::NonFinite::skip;
  const std::string error = support::error_on_ranks(plan, [&](train::Engine& engine) {
    const support::HashedBatches source(plan.model.vocab_size);
    scale_first_number(engine, "layers.5.mlp.up.weight", std::numeric_limits<double>::infinity());
    engine.step(source, {0, 0}, train::Stop::no);
  });
  EXPECT_THAT(error, ContainsRegex("; on rank 1 layers.5.mlp.up.weight = -?inf, and no later step can be finite; first "
                                   "in [^ ]+ .forward, chunk 0, microbatch 0, layer 5. on rank 1; parameters stay"));
}

/// A step whose norm is a spike, by logits that are large, in each way to run steps.
void expect_spike(config::RunPlan plan, ops::OnSpike on_spike) {
  const bool skips = on_spike == ops::OnSpike::skip;
  plan.train.spikes = {.norm = 3, .window = 3, .on_spike = on_spike};
  const std::string error = support::error_on_ranks(plan, [&](train::Engine& engine) {
    const support::HashedBatches source(plan.model.vocab_size);
    for (Index step = 0; step < 5; ++step) {
      Param* const table = engine.stage().params().find("embedding.token.weight");
      if (step == 4 && table != nullptr)
        for (float& value : table->value.span<float>()) value *= 50;
      const std::vector<support::Bytes> before = support::kept_state(engine);
      const train::StepReport report = engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
      EXPECT_EQ(report.spikes, step == 4 ? ops::kNormSpike : 0) << "step " << step << ", norm " << report.grad_norm;
      EXPECT_EQ(report.skipped, step == 4 && skips);
      EXPECT_EQ(support::kept_state(engine) == before, report.skipped);
      EXPECT_TRUE(report.finite);
    }
    EXPECT_EQ(engine.optimizer_state().updates, skips ? 4 : 5);
  });
  EXPECT_THAT(error, IsEmpty());
}

TEST(WrongNumbers, ASpikeOfTheNormIsReportedOrSkipped) {
  std::vector<capture::GraphsConfig> ways = support::graph_ways();
  ways.push_back({});
  for (const Grid& grid : {Grid{.tp = 2}, Grid{.pp = 2, .dp = 2}}) {
    for (const capture::GraphsConfig& graphs : ways) {
      SCOPED_TRACE(grid.name() + ", " + support::name_of(graphs));
      config::RunPlan plan = support::small_plan(grid, "fp32", 8);
      plan.graphs = graphs;
      for (const ops::OnSpike on_spike : {ops::OnSpike::report, ops::OnSpike::skip}) expect_spike(plan, on_spike);
    }
  }
}

std::string error_of_replicas(const Grid& grid, int rank, const char* name, const char* precision = "fp32") {
  config::RunConfig config = support::small_config(grid, precision, 4);
  config.train.global_batch = 4 * grid.dp;
  const config::RunPlan plan = config::resolve(config);
  return support::error_on_ranks(plan, [&](train::Engine& engine) {
    engine.step(support::HashedBatches(plan.model.vocab_size), {0, 0}, train::Stop::no);
    if (engine.world().rank() == rank) scale_first_number(engine, name, 1 + 1e-6);
    train::HostStaging staging;
    train::require_equal_replicas(engine, staging);
  });
}

TEST(WrongNumbers, ReplicasThatDifferAreNamed) {
  EXPECT_THAT(error_of_replicas({.dp = 2}, -1, ""), IsEmpty());
  EXPECT_THAT(error_of_replicas({.tp = 2, .dp = 2}, -1, ""), IsEmpty()) << "slices over tp differ";
  EXPECT_THAT(error_of_replicas({.tp = 4}, 1, "layers.3.mlp.up.weight"), IsEmpty()) << "no replicas over dp";
  EXPECT_THAT(error_of_replicas({.dp = 3}, 1, "layers.3.mlp.up.weight"),
              HasSubstr("[replicas] layers.3.mlp.up.weight on rank 1 is not that of rank 0,2: "));
  EXPECT_THAT(error_of_replicas({.tp = 2, .dp = 3}, 5, "layers.0.mlp.up.weight"),
              HasSubstr("layers.0.mlp.up.weight on rank 5 is not that of rank 1,3: "));
  // Copies in bf16 may be equal where masters differ.
  EXPECT_THAT(error_of_replicas({.dp = 3}, -1, "", "bf16"), IsEmpty());
  EXPECT_THAT(error_of_replicas({.dp = 3}, 1, "layers.3.mlp.up.weight", "bf16"),
              HasSubstr("[replicas] layers.3.mlp.up.weight on rank 1 is not that of rank 0,2: "));
  const std::string of_two = error_of_replicas({.pp = 2, .dp = 2}, 3, "layers.7.norm1.weight");
  EXPECT_THAT(of_two, ContainsRegex("layers.7.norm1.weight differs between rank (2 and 3|3 and 2): "));
}

TEST(WrongNumbers, ShardsOfTheOptimizerAreNoReplicas) {
  EXPECT_THAT(error_of_replicas({.pp = 2, .dp = 2, .sharding = Sharding::optimizer}, 1, "layers.3.mlp.up.weight"),
              IsEmpty());
}

}  // namespace
}  // namespace megalith
