// Sharded sums of gradients ([optimizer] shard = "gradients"): the training of whole ones but for the order of sums, on
// every grid and with everything that a step may do.
#include <cmath>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/train/non_finite.h"
#include "megalith/train/saver.h"

#include "tests/io/temp_dir.h"
#include "tests/train/echo_run.h"
#include "tests/train/graph_ways.h"
#include "tests/train/recompute_modes.h"
#include "tests/train/small_run.h"

namespace megalith {
namespace {

using support::Gathered;
using support::Grid;
using ::testing::HasSubstr;

constexpr Index kShardSteps = 6;

struct ShardCase {
  const char* name;
  Grid grid;
  void (*set)(config::RunConfig&) = [](config::RunConfig&) {};
};

void set_llama(config::RunConfig& c) {
  c.model.family = "llama";
  c.model.head_dim = 6;  // RoPE turns pairs
  c.model.num_kv_heads = 2;
  c.model.qk_norm = "head";
}

/// Layers of two kinds, so that the buckets of a window differ in their gaps.
void set_experts(config::RunConfig& c) {
  set_llama(c);
  c.moe.num_experts = 4;
  c.moe.top_k = 2;
  c.moe.pattern = "dm";
  c.moe.shared_ffn_hidden_size = 8;
  c.moe.shared_gate = true;
  c.moe.aux_loss = 0.01;
}

void set_parallel_experts(config::RunConfig& c) {
  set_experts(c);
  c.parallel.ep = 2;
}

void set_expert_slices(config::RunConfig& c) {
  set_parallel_experts(c);
  c.parallel.etp = 2;
}

void set_clones(config::RunConfig& c) {
  set_parallel_experts(c);
  c.moe.router_skew = support::kSkew;
  c.moe.echo.slots = 1;
  c.moe.echo.min_pairs = 0;
}

constexpr auto kRowsShared = nn::SequenceParallel::on;

const std::vector<ShardCase>& shard_cases() {
  static const std::vector<ShardCase> all = {
      {"dp2", {.dp = 2}},
      {"dp4", {.dp = 4}},
      {"dp2_of_one_microbatch", {.dp = 2}, [](config::RunConfig& c) { c.train.micro_batch = 4; }},
      {"tp2_dp2", {.tp = 2, .dp = 2}},
      {"tp2_dp2_sequence_parallel", {.tp = 2, .dp = 2, .sequence_parallel = kRowsShared}},
      {"tp2_dp2_halves",
       {.tp = 2, .dp = 2},
       [](config::RunConfig& c) {
         c.train.micro_batch = 2;
         c.parallel.tp_overlap = "halves";
       }},
      {"pp2_dp2", {.pp = 2, .dp = 2}},
      {"pp2_dp2_chunks2", {.pp = 2, .dp = 2, .chunks = 2}},
      {"pp2_dp2_chunks4", {.pp = 2, .dp = 2, .chunks = 4}},
      {"pp2_dp2_uneven",
       {.pp = 2, .dp = 2},
       [](config::RunConfig& c) {
         c.parallel.stage_layers = std::vector<Index>{8, 0};
       }},
      {"tp2_pp2_dp2", {.tp = 2, .pp = 2, .dp = 2}},
      {"llama_dp2", {.dp = 2}, set_llama},
      {"experts_dp4", {.dp = 4}, set_experts},
      {"experts_ep2_dp4", {.dp = 4}, set_parallel_experts},
      {"experts_ep2_etp2_pp2_dp4", {.pp = 2, .dp = 4}, set_expert_slices},
      {"clones_ep2_dp4", {.dp = 4}, set_clones},
      {"bert_dp2",
       {.dp = 2},
       [](config::RunConfig& c) {
         c.model.family = "bert";
         c.model.seq_len = 9;
       }},
      {"recompute_dp2",
       {.dp = 2},
       [](config::RunConfig& c) {
         c.recompute.mode = "full";
         c.recompute.method = "uniform";
         c.recompute.layers = 3;
       }},
  };
  return all;
}

config::RunPlan shard_plan(const ShardCase& of, const std::string& precision, ShardedState shard) {
  Grid grid = of.grid;
  grid.sharding = Sharding::optimizer;
  grid.shard = shard;
  config::RunConfig c = support::small_config(grid, precision, kShardSteps);
  c.optimizer.clip = 0.5;
  of.set(c);
  return config::resolve(c);
}

struct ShardOutcome {
  std::vector<double> losses, norms;
  std::vector<bool> skipped;
  Gathered gradients;   ///< of the first step: the sums of every rank's shards
  Gathered parameters;  ///< after the last
  checkpoint::Digest128 digest;
  Index clones = 0;  ///< of experts
};

/// Steps [begin, end), resumed from `folder` unless begin is 0 and saved there at the end. Evaluates after the second
/// of them.
void run_shards(const config::RunPlan& plan, const io::Path& folder, Index begin, Index end, ShardOutcome& outcome) {
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    train::Saver saver(engine, plan, {1, 2}, *fs, folder);
    const support::HashedBatches source(plan.model.vocab_size);
    train::Progress progress;
    if (begin > 0) {
      const std::optional<train::Resumed> resumed = saver.resume();
      EXPECT_EQ(resumed.value().warnings, std::vector<std::string>());
      progress = resumed->progress;
    }
    for (Index step = begin; step < end; ++step) {
      const train::StepReport report = engine.step(source, progress, train::Stop::no);
      progress = {step + 1, progress.samples + plan.train.batch_after(progress.samples)};
      if (step == 0) {
        for (const train::StatePiece& piece :
             train::updated_pieces(engine.stage().params(), engine.optimizers(), train::StateTensors::gradients))
          outcome.gradients.put(piece.slice, piece.values.whole);
      }
      const double evaluated = step == begin + 1 ? engine.evaluate(source, plan.train.global_batch) : 0;
      if (world.rank() != 0) continue;
      outcome.losses.insert(outcome.losses.end(), {report.loss, evaluated});
      outcome.norms.push_back(report.grad_norm);
      outcome.skipped.push_back(report.skipped);
      outcome.clones += support::clones_of(report);
    }
    engine.stage().gather_all_params(engine.exec());
    support::put_params(outcome.parameters, engine.stage(), false);
    const checkpoint::Digest128 digest = saver.save(progress);
    if (world.rank() == 0) outcome.digest = digest;
  });
}

void run_shards(const config::RunPlan& plan, ShardOutcome& outcome) {
  const TempDir dir;
  run_shards(plan, dir.path(), 0, plan.train.steps, outcome);
}

class ShardedGradients : public ::testing::TestWithParam<ShardCase> {};

TEST_P(ShardedGradients, TrainAsWholeOnesDo) {
  ShardOutcome whole, sharded;
  run_shards(shard_plan(GetParam(), "fp64", ShardedState::moments), whole);
  run_shards(shard_plan(GetParam(), "fp64", ShardedState::gradients), sharded);
  EXPECT_EQ(sharded.clones > 0, GetParam().set == set_clones);
  EXPECT_LT(support::relative_error(sharded.losses, whole.losses), 1e-12);
  EXPECT_LT(support::relative_error(sharded.norms, whole.norms), 1e-12);
  EXPECT_THAT(sharded.parameters.disagreeing(), ::testing::IsEmpty());
  ASSERT_EQ(sharded.gradients.tensors().size(), whole.gradients.tensors().size());
  for (const auto& [name, values] : whole.gradients.tensors())
    EXPECT_LT(support::relative_error(sharded.gradients.at(name), values), 1e-10) << name;
  for (const auto& [name, values] : whole.parameters.tensors())
    EXPECT_LT(support::relative_error(sharded.parameters.at(name), values), 1e-10) << name;
}

TEST_P(ShardedGradients, LoseTheSameInFp32) {
  ShardOutcome whole, sharded;
  run_shards(shard_plan(GetParam(), "fp32", ShardedState::moments), whole);
  run_shards(shard_plan(GetParam(), "fp32", ShardedState::gradients), sharded);
  EXPECT_LT(support::relative_error(sharded.losses, whole.losses), 1e-6);
}

TEST_P(ShardedGradients, ResumeWhatWholeOnesSavedAndTheOtherWayRound) {
  const config::RunPlan plans[] = {shard_plan(GetParam(), "fp64", ShardedState::moments),
                                   shard_plan(GetParam(), "fp64", ShardedState::gradients)};
  ShardOutcome uninterrupted;
  run_shards(plans[0], uninterrupted);
  for (const int first : {0, 1}) {
    const TempDir dir;
    ShardOutcome joined, tail;
    run_shards(plans[first], dir.path(), 0, 2, joined);
    run_shards(plans[1 - first], dir.path(), 2, kShardSteps, tail);
    joined.losses.insert(joined.losses.end(), {tail.losses[0], 0});  // it evaluates elsewhere
    for (std::size_t i = 4; i < tail.losses.size(); i += 2) joined.losses.push_back(tail.losses[i]);
    std::vector<double> want(uninterrupted.losses.begin(), uninterrupted.losses.begin() + 6);
    for (std::size_t i = 8; i < uninterrupted.losses.size(); i += 2) want.push_back(uninterrupted.losses[i]);
    EXPECT_LT(support::relative_error(joined.losses, want), 1e-12) << first;
    for (const auto& [name, values] : uninterrupted.parameters.tensors())
      EXPECT_LT(support::relative_error(tail.parameters.at(name), values), 1e-10) << name;
  }
}

// What a rank takes, and what it sends, is what was planned.
TEST_P(ShardedGradients, TakeAndSendWhatThePlanSays) {
  for (const char* precision : {"fp32", "bf16"}) {
    const config::RunPlan plan = shard_plan(GetParam(), precision, ShardedState::gradients);
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
      const train::RankCost planned = train::planned_cost(plan, world.rank());
      train::Engine engine(world, plan);
      engine.allocate();
      EXPECT_EQ(engine.taken_bytes(), planned.bytes) << "rank " << world.rank() << ", " << precision;
      EXPECT_GT(planned.bytes.at("gradient windows"), plan.stage_layers.empty() ? 0 : -1);
      const auto scattered = [&] {
        Index sent = 0;
        std::set<const comm::Channel*> groups;  // those with the same members are one
        for (const ParamBuffer& params : engine.stage().params().trained()) {
          const comm::Group& group = engine.mesh().reduction_group({.grid = params.grid()});
          if (groups.insert(&group.channel()).second)
            sent += group.counters()[comm::Op::reduce_scatter].bytes / group.size() * (group.size() - 1);
        }
        return sent;
      };
      const support::HashedBatches source(plan.model.vocab_size);
      const Index before = scattered();
      engine.step(source, {}, train::Stop::no);
      const bool is_own = plan.grid.tp == 1;  // else rows outside regions are scattered, too, over groups of the same
      if (is_own) {
        EXPECT_EQ(scattered() - before, planned.sums_sent) << "rank " << world.rank();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShardedGradients, ::testing::ValuesIn(shard_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ShardedGradientsAlone, HaveTheBitsOfWholeOnesInAStepOfOneMicrobatch) {
  const ShardCase one{"one", {.dp = 4}, [](config::RunConfig& c) { c.train.micro_batch = 2; }};
  ShardOutcome whole, sharded;
  run_shards(shard_plan(one, "fp32", ShardedState::moments), whole);
  run_shards(shard_plan(one, "fp32", ShardedState::gradients), sharded);
  for (const auto& [name, values] : whole.gradients.tensors()) EXPECT_EQ(sharded.gradients.at(name), values) << name;
}

TEST(ShardedGradientsAlone, DoNothingWithOneDataParallelRank) {
  const ShardCase alone{"alone", {.tp = 2}};
  const config::RunPlan plain = shard_plan(alone, "bf16", ShardedState::moments),
                        sharded = shard_plan(alone, "bf16", ShardedState::gradients);
  EXPECT_EQ(train::planned_bytes(sharded, 0), train::planned_bytes(plain, 0));
  ShardOutcome of_plain, of_sharded;
  run_shards(plain, of_plain);
  run_shards(sharded, of_sharded);
  EXPECT_EQ(of_sharded.losses, of_plain.losses);
  EXPECT_EQ(of_sharded.digest.hex(), of_plain.digest.hex());
}

// The matrices of 8 layers: a shard of 4, and two windows of a layer.
TEST(ShardedGradientsAlone, TakeAShardAndTwoLayers) {
  const ShardCase of{"dp4", {.dp = 4}, [](config::RunConfig& c) {
                       c.model.hidden_size = 64;
                       c.model.ffn_hidden_size = 256;
                     }};
  const BytesByOwner whole = train::planned_bytes(shard_plan(of, "fp32", ShardedState::moments), 0),
                     sharded = train::planned_bytes(shard_plan(of, "fp32", ShardedState::gradients), 0);
  const Index layer = 12 * 64 * 64 * Index{4};
  EXPECT_EQ(whole.at("gradients") - sharded.at("gradients"), 8 * layer / 4 * 3);
  EXPECT_EQ(sharded.at("gradient windows"), 2 * layer);
  for (const char* same : {"parameters", "optimizer", "activations", "scratch"})
    EXPECT_EQ(sharded.at(same), whole.at(same)) << same;
}

TEST(ShardedGradientsAlone, SkipTheStepsThatOverflow) {
  const auto plan = [](ShardedState shard) {
    config::RunPlan of = shard_plan({"pp2_dp2", {.pp = 2, .dp = 2}}, "fp16", shard);
    of.train.steps = 10;
    of.train.scaling = {.initial = 0x1p26, .smallest = 1, .growth_interval = 2};
    return of;
  };
  ShardOutcome whole, sharded;
  run_shards(plan(ShardedState::moments), whole);
  run_shards(plan(ShardedState::gradients), sharded);
  EXPECT_EQ(sharded.skipped, whole.skipped);
  EXPECT_GT(std::ranges::count(sharded.skipped, true), 0);
  EXPECT_GT(std::ranges::count(sharded.skipped, false), 0);
  EXPECT_LT(support::relative_error({sharded.losses.back()}, {whole.losses.back()}), 1e-3);
}

TEST(ShardedGradientsAlone, AreNamedIfTheyAreNotFinite) {
  const config::RunPlan plan = shard_plan({"dp2", {.dp = 2}}, "fp32", ShardedState::gradients);
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    engine.step(support::HashedBatches(plan.model.vocab_size), {0, 0}, train::Stop::no);
    const auto found = [&] {
      return train::first_non_finite(world, engine.exec(), engine.stage().params(), train::Gradients::kept).text;
    };
    EXPECT_EQ(found(), "");
    const ParamBuffer& params = engine.stage().params().dense();
    const Param& down = engine.stage().params().at("layers.3.mlp.down.weight");
    const std::vector<Tensor> kept = params.kept_grads(down);
    EXPECT_EQ(kept.empty(), world.rank() == 0) << "it lies in the second half of its bucket";
    if (world.rank() == 1) ops::fill(engine.exec(), kept.front().rows(0, 1), std::nan(""));
    EXPECT_EQ(found(), "on rank 1 the gradient of layers.3.mlp.down.weight = nan");
  });
}

/// Every way of graphs replays the eager step bit by bit: windows have fixed addresses.
TEST(ShardedGradientsAlone, HaveTheSameBitsFromGraphs) {
  for (const Grid& grid : {Grid{.dp = 2}, Grid{.pp = 2, .dp = 2}, Grid{.pp = 2, .dp = 2, .chunks = 2}}) {
    const config::RunPlan eager = shard_plan({"graphs", grid}, "fp32", ShardedState::gradients);
    ShardOutcome want;
    run_shards(eager, want);
    for (const support::GraphWay& way : support::kGraphWays) {
      SCOPED_TRACE(str(grid.name(), ", ", way.name));
      config::RunPlan plan = support::with_graphs(eager, way, 1);
      plan.graphs.check_steps = 1;
      ShardOutcome got;
      run_shards(plan, got);
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_EQ(got.norms, want.norms);
      EXPECT_EQ(got.digest.hex(), want.digest.hex());
    }
  }
}

TEST(ShardedGradientsAlone, FollowABatchThatGrows) {
  const ShardCase ramp{"ramp", {.dp = 2}, [](config::RunConfig& c) {
                         c.train.batch_ramp = "2:8:24";
                         c.train.steps = 8;
                       }};
  ShardOutcome whole, sharded;
  run_shards(shard_plan(ramp, "fp64", ShardedState::moments), whole);
  run_shards(shard_plan(ramp, "fp64", ShardedState::gradients), sharded);
  EXPECT_LT(support::relative_error(sharded.losses, whole.losses), 1e-12);
}

}  // namespace
}  // namespace megalith
