#include <gtest/gtest.h>

#include "tests/io/temp_dir.h"
#include "tests/train/agreeing_runs.h"
#include "tests/train/moe_run.h"
#include "tests/train/ramp_run.h"
#include "tests/train/resumed_run.h"

namespace megalith {
namespace {

using support::Grid;
using support::MoeGrid;
using support::MoeModel;
using support::RunRecord;

constexpr Index kRampSteps = 10;

config::RunPlan ramp_plan(const Grid& grid, const char* family = "gpt2", Index start = 2) {
  config::RunConfig c = support::small_config(grid, "fp64", kRampSteps);
  c.train.global_batch.reset();
  c.train.batch_ramp = support::ramp_from(start);
  c.model.family = family;
  if (std::string_view(family) == "bert") c.bert.mask_fraction = 0.5;
  return config::resolve(c);
}

config::RunConfig expert_ramp(const MoeGrid& grid, const MoeModel& model, Index start) {
  config::RunConfig c = support::moe_config(grid, model, "fp64", kRampSteps);
  c.train.global_batch.reset();
  c.train.batch_ramp = support::ramp_from(start);
  return c;
}

const MoeModel& moe_model(std::string_view name) {
  return *std::ranges::find(support::moe_models(), name, &MoeModel::name);
}

/// What a run leaves behind.
struct RampRun : RunRecord {
  explicit RampRun(const config::RunPlan& plan) {
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) { support::train_rank(world, plan, *this); });
  }
};

/// The first four steps of a ramp are those of a run with the first size.
void expect_steps_of_the_first_size(const config::RunPlan& ramp, config::RunConfig c, Index start) {
  const RampRun grown(ramp);
  c.train.steps = 4;
  c.optimizer.decay_steps = kRampSteps;
  c.train.batch_ramp.reset();
  c.train.global_batch = start;
  const RampRun small(config::resolve(c));
  const std::vector<double> first(grown.losses.begin(), grown.losses.begin() + 4);
  EXPECT_LT(support::relative_error(first, small.losses), 1e-13);
  const std::vector<double> norms(grown.norms.begin(), grown.norms.begin() + 4);
  EXPECT_LT(support::relative_error(norms, small.norms), 1e-13);
}

TEST(BatchRampRun, StepsHaveTheSamplesOfTheirBatch) {
  expect_steps_of_the_first_size(ramp_plan({}), support::small_config({}, "fp64", kRampSteps), 2);
  const Grid chunks{.pp = 2, .chunks = 2};
  expect_steps_of_the_first_size(ramp_plan(chunks), support::small_config(chunks, "fp64", kRampSteps), 2);
}

// Losses of experts are divided by the tokens of a step, not by those of the largest.
TEST(BatchRampRun, StepsOfExpertsHaveTheSamplesOfTheirBatch) {
  for (const char* name : {"GlobalLoss", "LossOfMicrobatches", "SigmoidWithBias"}) {
    SCOPED_TRACE(name);
    const config::RunConfig c = expert_ramp({}, moe_model(name), 4);
    expect_steps_of_the_first_size(config::resolve(c), c, 4);
  }
}

/// The losses of experts in the first step, as they are reported.
std::vector<double> reported_losses(const config::RunPlan& plan) {
  std::vector<double> losses;
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const train::StepReport report = engine.step(support::HashedBatches(plan.model.vocab_size), {}, train::Stop::no);
    if (world.rank() == 0) losses = {report.moe.aux_loss, report.moe.z_loss};
  });
  return losses;
}

TEST(BatchRampRun, ReportsLossesOfExpertsPerTokenOfTheStep) {
  config::RunConfig c = expert_ramp({2, 1, 1, 2, 1}, moe_model("LossOfMicrobatches"), 4);
  const std::vector<double> grown = reported_losses(config::resolve(c));
  c.train.batch_ramp.reset();
  c.train.global_batch = 4;
  EXPECT_EQ(grown, reported_losses(config::resolve(c)));
  EXPECT_GT(grown[0], 0.1);
}

TEST(BatchRampRun, EveryGridTrainsTheSameModel) {
  for (const char* family : {"gpt2", "bert"}) {
    const RampRun want(ramp_plan({}, family));
    for (const Grid& grid : {Grid{.dp = 2}, Grid{.pp = 2}, Grid{.pp = 4}, Grid{.tp = 2, .pp = 2, .dp = 2},
                             Grid{.dp = 2, .sharding = Sharding::optimizer}, Grid{.pp = 2, .chunks = 2},
                             Grid{.pp = 2, .chunks = 4}, Grid{.tp = 2, .pp = 2, .chunks = 2}}) {
      SCOPED_TRACE(family + (" " + grid.name()));
      support::expect_fp64_agrees(RampRun(ramp_plan(grid, family)), want);
    }
  }
}

TEST(BatchRampRun, ChunksTrainTheSameModelAsOneRank) {
  const RampRun of_four(ramp_plan({}, "gpt2", 4));
  for (const Grid& grid :
       {Grid{.pp = 2, .dp = 2, .chunks = 2}, Grid{.pp = 4, .chunks = 2},
        Grid{.pp = 2, .dp = 2, .chunks = 2, .sharding = Sharding::optimizer},
        Grid{.pp = 2, .dp = 2, .chunks = 2, .sharding = Sharding::optimizer, .shard = ShardedState::gradients}}) {
    SCOPED_TRACE(grid.name());
    support::expect_fp64_agrees(RampRun(ramp_plan(grid, "gpt2", 4)), of_four);
  }
}

// A step of 7 microbatches in groups of 5 needs more buffers for messages than one of 14.
TEST(BatchRampRun, SmallStepsMayNeedMoreMemoryThanLargeOnes) {
  const auto plan_of = [](const Grid& grid, const std::string& ramp) {
    config::RunConfig c = support::small_config(grid, "fp64", 5);
    if (grid.chunks > 1) c.parallel.group_size = 5;
    c.train.global_batch = 14;
    if (!ramp.empty()) c.train.batch_ramp = ramp;
    return config::resolve(c);
  };
  const Grid grid{.pp = 2, .chunks = 2};
  const std::string ramp = "7:14:20";
  support::expect_fp64_agrees(RampRun(plan_of(grid, ramp)), RampRun(plan_of({}, ramp)));
  Index more = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const BytesByOwner with = train::planned_bytes(plan_of(grid, ramp), rank),
                       without = train::planned_bytes(plan_of(grid, ""), rank);
    for (const char* owner : {"activations", "pipeline buffers"}) {
      EXPECT_GE(with.at(owner), without.at(owner)) << owner << " of rank " << rank;
      more += with.at(owner) - without.at(owner);
    }
  }
  EXPECT_GT(more, 0);
  comm::run_ranks(2, [&](comm::World& world) {
    const config::RunPlan plan = plan_of(grid, ramp);
    train::Engine engine(world, plan);
    const BytesByOwner planned = engine.planned_bytes();
    engine.allocate();
    EXPECT_EQ(engine.taken_bytes(), planned);
  });
}

TEST(BatchRampRun, EveryGridTrainsTheSameExperts) {
  for (const char* name : {"GlobalLoss", "SigmoidWithBias", "Drop"}) {
    const RampRun want(config::resolve(expert_ramp({}, moe_model(name), 8)));
    for (const MoeGrid& grid : {MoeGrid{4, 1, 1, 4, 1}, MoeGrid{4, 2, 1, 2, 2}, MoeGrid{4, 1, 2, 2, 1, 2},
                                MoeGrid{4, 1, 1, 2, 1, 1, nn::SequenceParallel::off, Sharding::optimizer}}) {
      SCOPED_TRACE(name + (" " + grid.name()));
      support::expect_fp64_agrees(RampRun(config::resolve(expert_ramp(grid, moe_model(name), 8))), want);
    }
  }
}

// Held steps run again with their own batch, also where the next step, of another size, is under way.
TEST(BatchRampRun, StepsWithTooFewRowsAreRunAgain) {
  const auto plan_of = [](const char* factor) {
    config::RunConfig c = expert_ramp({4, 1, 1, 4, 1}, moe_model("Top2"), 8);
    c.moe.dispatcher = "peer";
    c.moe.rank_capacity_factor = factor;
    c.moe.router_skew = 4;
    return config::resolve(c);
  };
  support::expect_fp64_agrees(RampRun(plan_of("2")), RampRun(plan_of("worst")));
  int reruns = 0;
  const config::RunPlan plan = plan_of("2");
  comm::run_ranks(4, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    train::Progress progress;
    for (Index step = 0; step < kRampSteps; ++step) {
      const bool is_rerun = engine.step(support::HashedBatches(plan.model.vocab_size), progress, train::Stop::no).rerun;
      progress = {step + 1, progress.samples + plan.train.batch_after(progress.samples)};
      if (world.rank() == 0 && is_rerun) ++reruns;
    }
  });
  EXPECT_GT(reruns, 2);
}

/// Saved on one grid and resumed on another, at steps of which one is the last of its size.
void expect_resumes(const config::RunPlan& saved, const config::RunPlan& resumed, const config::RunPlan& whole) {
  const RampRun want(whole);
  for (const Index saved_at : {Index{3}, Index{4}, Index{7}}) {
    SCOPED_TRACE(saved_at);
    const TempDir dir;
    support::train_and_save(saved, dir.path(), 0, saved_at);
    const support::Trained run = support::train_and_save(resumed, dir.path(), saved_at, kRampSteps);
    EXPECT_LT(support::relative_error(run.losses, {want.losses.begin() + saved_at, want.losses.end()}), 1e-12);
  }
}

TEST(BatchRampRun, AResumedRunGoesOnWithTheBatchesOfAnUninterruptedOne) {
  for (const char* family : {"gpt2", "bert"}) {
    SCOPED_TRACE(family);
    expect_resumes(ramp_plan({.pp = 2}, family), ramp_plan({.dp = 2}, family), ramp_plan({}, family));
  }
  expect_resumes(ramp_plan({.pp = 2, .chunks = 2}), ramp_plan({.pp = 2, .chunks = 4}), ramp_plan({}));
}

TEST(BatchRampRun, AResumedRunOfExpertsGoesOnAlike) {
  for (const char* name : {"GlobalLoss", "SigmoidWithBias"}) {
    SCOPED_TRACE(name);
    const auto plan_of = [&](const MoeGrid& grid) { return config::resolve(expert_ramp(grid, moe_model(name), 8)); };
    expect_resumes(plan_of({4, 1, 1, 4, 1}), plan_of({4, 1, 2, 2, 1, 2}), plan_of({}));
  }
}

}  // namespace
}  // namespace megalith
