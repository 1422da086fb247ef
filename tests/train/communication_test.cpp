#include <cstring>

#include <gtest/gtest.h>

#include "tests/comm/wrapped_world.h"
#include "tests/train/graph_ways.h"
#include "tests/train/refused_steps.h"

// What a step sends, against the table of arXiv:1909.08053's scheme: per microbatch and rank, 4 all-reduces of b s h a
// layer, b s h for the embedding and b s h for the output product, 3 b s for the loss, and the parameters once over dp.
namespace megalith {
namespace {

std::map<std::string, comm::Counters> counters_of_one_step(const support::Grid& grid, int rank,
                                                           const nn::RecomputeConfig& recompute = {}) {
  config::RunPlan plan = support::small_plan(grid, "fp64", 1);
  plan.recompute = recompute;
  std::map<std::string, comm::Counters> counters;
  comm::run_ranks(grid.ranks(), [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    engine.step(support::HashedBatches(plan.model.vocab_size), {}, train::Stop::no);
    if (world.rank() != rank) return;
    for (const comm::Group& group : world.groups()) counters[std::string(group.name())] = group.counters();
  });
  return counters;
}

TEST(Communication, TensorParallelStepMatchesTheTable) {
  const config::RunPlan plan = support::small_plan({.tp = 2}, "fp64", 1);
  const Index microbatches = plan.train.global_batch / plan.train.micro_batch;
  const Index bs = plan.train.micro_batch * plan.model.seq_len, bsh = bs * plan.model.hidden_size,
              layers = plan.model.num_layers;
  const comm::Counters tp = counters_of_one_step({.tp = 2}, 1).at("tp");
  const comm::Counter& calls = tp[comm::Op::all_reduce];
  EXPECT_EQ(calls.calls, microbatches * (4 * layers + 1 + 1 + 2));
  EXPECT_EQ(calls.elements, microbatches * (4 * layers * bsh + 2 * bsh + 3 * bs));
  EXPECT_EQ(calls.bytes, calls.elements * 8);
  EXPECT_EQ(tp[comm::Op::all_gather].calls, 0);
  EXPECT_EQ(tp[comm::Op::broadcast].calls, 0);
}

// The recomputed forward pass of a layer stops before its last GEMM, whose sum over tp nobody needs again: with `full`
// attention's all-reduce is the only one more (arXiv:2205.05198). The other modules recompute within a rank.
TEST(Communication, OnlyFullRecomputationReducesAgain) {
  const auto reductions_a_layer = [](const nn::RecomputeConfig& recompute, nn::SequenceParallel sequence_parallel) {
    const support::Grid grid{.tp = 2, .sequence_parallel = sequence_parallel};
    const config::RunPlan plan = support::small_plan(grid, "fp64", 1);
    const Index passes = plan.train.global_batch / plan.train.micro_batch * plan.model.num_layers;
    const auto calls = [&](const nn::RecomputeConfig& config, comm::Op op) {
      return counters_of_one_step(grid, 1, config).at("tp")[op].calls;
    };
    const bool shares_rows = sequence_parallel == nn::SequenceParallel::on;
    const comm::Op op = shares_rows ? comm::Op::reduce_scatter : comm::Op::all_reduce;
    const Index outside_layers = calls({}, op) - 4 * passes;
    return static_cast<double>(calls(recompute, op) - outside_layers) / static_cast<double>(passes);
  };
  using nn::RecomputeModule;
  using nn::SequenceParallel;
  const nn::RecomputeConfig full{.mode = nn::RecomputeMode::full};
  EXPECT_EQ(reductions_a_layer(full, SequenceParallel::off), 5);
  EXPECT_EQ(reductions_a_layer(full, SequenceParallel::on), 5);
  for (const RecomputeModule module :
       {RecomputeModule::gelu, RecomputeModule::norms, RecomputeModule::attention, RecomputeModule::mlp}) {
    nn::RecomputeConfig selective{.mode = nn::RecomputeMode::selective};
    selective.add(module);
    EXPECT_EQ(reductions_a_layer(selective, SequenceParallel::off), 4) << name(module);
    EXPECT_EQ(reductions_a_layer(selective, SequenceParallel::on), 4) << name(module);
  }
}

TEST(Communication, OneRankCommunicatesNothing) {
  for (const auto& [name, counters] : counters_of_one_step({}, 0)) {
    for (const comm::Counter& counter : counters.by_op) EXPECT_EQ(counter.calls, 0) << name;
  }
}

TEST(Communication, DataParallelReducesTheGradientsOnce) {
  const comm::Counters dp = counters_of_one_step({.dp = 2}, 0).at("dp-cp");
  const std::unique_ptr<comm::World> world = comm::dry_world(0, 2);
  const config::RunPlan plan = support::small_plan({.dp = 2}, "fp64", 1);
  train::Engine engine(*world, plan);
  const ParamBuffer& params = engine.stage().params().dense();
  EXPECT_EQ(dp[comm::Op::reduce_scatter].calls, static_cast<Index>(params.buckets().size()));
  EXPECT_EQ(dp[comm::Op::reduce_scatter].elements, params.numel());
  EXPECT_EQ(dp[comm::Op::all_gather].calls, static_cast<Index>(params.buckets().size()));
  EXPECT_EQ(dp[comm::Op::all_gather].elements, params.numel() / 2);  // entering: own shards
  EXPECT_EQ(dp[comm::Op::all_reduce].calls, 0);
}

TEST(Communication, ADistributedOptimizerGathersValuesInPlaceOfGradients) {
  const config::RunPlan plan = support::small_plan({.dp = 2, .sharding = Sharding::optimizer}, "fp64", 1);
  const comm::Counters dp = counters_of_one_step({.dp = 2, .sharding = Sharding::optimizer}, 0).at("dp-cp");
  const std::unique_ptr<comm::World> world = comm::dry_world(0, 2);
  train::Engine engine(*world, plan);
  const ParamBuffer& params = engine.stage().params().dense();
  EXPECT_EQ(dp[comm::Op::reduce_scatter].elements, params.numel());
  EXPECT_EQ(dp[comm::Op::all_gather].calls, static_cast<Index>(params.buckets().size()));
  EXPECT_EQ(dp[comm::Op::all_gather].elements, params.numel() / 2);
  EXPECT_EQ(dp[comm::Op::all_reduce].calls, 1);  // of the sums of squares
  EXPECT_EQ(dp[comm::Op::all_reduce].elements, 2 * static_cast<Index>(params.buckets().size()));
}

TEST(Communication, PipelineSendsOneActivationAndOneGradientAMicrobatch) {
  const config::RunPlan plan = support::small_plan({.pp = 2}, "fp64", 1);
  const auto counters = counters_of_one_step({.pp = 2}, 0);
  const Index microbatches = plan.train.global_batch;
  EXPECT_EQ(counters.at("pp")[comm::Op::send].calls, microbatches);
  EXPECT_EQ(counters.at("pp")[comm::Op::recv].calls, microbatches);
  EXPECT_EQ(counters.at("pp")[comm::Op::send].elements, microbatches * plan.model.seq_len * plan.model.hidden_size);
  EXPECT_EQ(counters.at("embd")[comm::Op::all_reduce].calls, 1);
}

/// All calls of rank 0 in each step, of every op and group.
std::vector<Index> calls_of_steps(const config::RunPlan& plan, Index first_step, Index steps) {
  std::vector<Index> calls;
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const support::HashedBatches source(plan.model.vocab_size);
    const auto all_calls = [&] {
      Index sum = 0;
      for (const comm::Group& group : world.groups())
        for (const comm::Counter& counter : group.counters().by_op) sum += counter.calls;
      return sum;
    };
    for (Index step = first_step; step < first_step + steps; ++step) {
      const Index before = all_calls();
      engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
      if (world.rank() == 0) calls.push_back(all_calls() - before);
    }
  });
  return calls;
}

/// The vote of a step has the counts of masked tokens of the next one. The first step of a run, or after a resume, sums
/// its own first.
TEST(Communication, BertSumsItsTargetsBesideTheVote) {
  config::RunConfig c = support::small_config({.dp = 2}, "fp32", 8);
  c.model.family = "bert";
  c.bert.mask_fraction = 0.5;
  const config::RunPlan plan = config::resolve(c);
  for (const Index first : {0, 3}) {
    const std::vector<Index> calls = calls_of_steps(plan, first, 3);
    EXPECT_EQ(calls[0], calls[1] + 1) << first;
    EXPECT_EQ(calls[1], calls[2]) << first;
  }
  const std::vector<Index> of_gpt = calls_of_steps(support::small_plan({.dp = 2}, "fp32", 8), 0, 3);
  EXPECT_EQ(of_gpt[0], of_gpt[1]);
}

/// The calls of a rank that has its own idea of the step: the optimizer must not move on any rank.
TEST(Agreement, ARankThatSkipsACollectiveStopsTheStepEverywhere) {
  const config::RunPlan plan = support::small_plan({.dp = 2}, "fp64", 2);
  comm::run_ranks(2, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const support::HashedBatches source(plan.model.vocab_size);
    engine.step(source, {}, train::Stop::no);
    // A call that only this rank believes to have made: what a skipped or doubled collective leaves in the hash.
    if (world.rank() == 1) engine.mesh().dp.channel().book({.op = comm::Op::barrier}, 0);
    EXPECT_NE(support::refusal_of_step(engine, source, {1, 8}), "");
  });
}

/// The last rank miscounts whenever gradients are summed.
class MiscountingChannel final : public comm::ForwardingChannel {
 public:
  explicit MiscountingChannel(const comm::Group& group) : ForwardingChannel(group) {}
  comm::Ticket reduce_scatter(const comm::Call& call, const void* in, void* out, Stream stream) override {
    if (rank() + 1 == size()) support::miscount(*this);
    return inner().reduce_scatter(call, in, out, stream);
  }
};

std::vector<support::GraphWay> all_ways() {
  std::vector<support::GraphWay> ways(std::begin(support::kGraphWays), std::end(support::kGraphWays));
  ways.push_back({"eager", capture::GraphMode::none});
  return ways;
}

TEST(Agreement, CallsThatDifferWithinTheFirstStepStopThatStep) {
  for (const support::GraphWay& way : all_ways()) {
    SCOPED_TRACE(way.name);
    const config::RunPlan plan = support::with_graphs(support::small_plan({.dp = 2}, "fp64", 2), way, 3);
    comm::run_ranks(2, [&](comm::World& world) {
      comm::WrappedWorld<MiscountingChannel> miscounting(world);
      train::Engine engine(miscounting, plan);
      engine.allocate();
      EXPECT_NE(support::refusal_of_step(engine, support::HashedBatches(plan.model.vocab_size), {}), "");
    });
  }
}

TEST(Agreement, ACaptureThatRanksDisagreeAboutIsNotLaunched) {
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    const config::RunPlan plan = support::with_graphs(support::small_plan({.dp = 2}, "fp64", 3), way, 1);
    comm::run_ranks(2, [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      const support::HashedBatches source(plan.model.vocab_size);
      engine.step(source, {}, train::Stop::no);
      if (world.rank() == 1) support::miscount(engine.mesh().dp.channel());
      const std::string refusal = support::refusal_of_step(engine, source, {1, 8});
      EXPECT_EQ(refusal.substr(0, 17), "step 2: [capture]") << refusal;
      EXPECT_EQ(engine.captured_graphs().launch_s, 0);
    });
  }
}

TEST(Agreement, NaNStopsTheStepEverywhereAndNamesTheStep) {
  const config::RunPlan plan = support::small_plan({.tp = 2, .dp = 2}, "fp32", 2);
  comm::run_ranks(4, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    if (world.rank() == 3) engine.stage().params().at("layers.0.mlp.up.bias").value.data<float>()[0] = std::nanf("");
    const std::span<float> values = engine.stage().params().dense().values().span<float>();
    const std::vector<float> before(values.begin(), values.end());
    try {
      engine.step(support::HashedBatches(plan.model.vocab_size), {}, train::Stop::no);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const NonFiniteError& error) {
      EXPECT_NE(std::string(error.what()).find("[step 1]"), std::string::npos) << error.what();
    }
    EXPECT_EQ(std::memcmp(before.data(), values.data(), values.size_bytes()), 0) << "rank " << world.rank();
  });
}

TEST(Agreement, AStopAskedOnOneRankIsSeenByAll) {
  const config::RunPlan plan = support::small_plan({.tp = 2, .pp = 2}, "fp64", 2);
  comm::run_ranks(4, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    EXPECT_TRUE(engine
                    .step(support::HashedBatches(plan.model.vocab_size), {},
                          world.rank() == 2 ? train::Stop::asked : train::Stop::no)
                    .stop);
  });
}

}  // namespace
}  // namespace megalith
