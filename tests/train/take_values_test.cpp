#include <algorithm>
#include <fstream>
#include <span>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/train/saver.h"

#include "tests/io/temp_dir.h"
#include "tests/train/resumed_run.h"
#include "tests/train/saved_run.h"

// Runs that begin with the values of a checkpoint (train.init).
namespace megalith {
namespace {

using support::Grid;

constexpr Index kTakenAt = 2, kTakenSteps = 4;

config::RunPlan undisturbed_plan(const Grid& grid, Index seed, Index steps) {
  config::RunConfig config = support::small_config(grid, "fp64", steps);
  config.model.dropout = 0;  // which depends on the seed, as the values of train.init do not
  config.train.seed = seed;
  return config::resolve(config);
}

// A run that begins with another's first values trains as that one did, whatever its own seed, on every kind of grid.
TEST(TakeValues, GivesTheRunThatTheValuesCameFrom) {
  for (const Grid& grid : {Grid{}, Grid{.tp = 2, .pp = 2}, Grid{.dp = 4, .sharding = Sharding::optimizer}}) {
    const TempDir dir;
    support::RunRecord want;
    comm::run_ranks(1, [&](comm::World& world) {
      const config::RunPlan plan = undisturbed_plan({}, 7, kTakenSteps);
      train::Engine engine(world, plan);
      engine.allocate();
      train::Saver(engine, plan, {1, 2}, *io::posix_fs(), dir.path()).save({});
      support::train_rank(world, plan, want);
    });
    std::vector<double> losses;
    comm::run_ranks(grid.ranks(), [&](comm::World& world) {
      const config::RunPlan plan = undisturbed_plan(grid, 8, kTakenSteps);
      train::Engine engine(world, plan);
      engine.allocate();
      train::Saver(engine, plan, {1, 5}, *io::posix_fs(), dir / "unused").take_values(dir / "step_00000000");
      const support::HashedBatches source(plan.model.vocab_size);
      for (Index step = 0; step < kTakenSteps; ++step) {
        const train::StepReport result = engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
        if (world.rank() == 0) losses.push_back(result.loss);
      }
    });
    ASSERT_EQ(losses.size(), want.losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], want.losses[i], 1e-12) << grid.name();
  }
}

// Layers read 16-bit copies of the masters: copies of the run's own first values would give another first loss.
TEST(TakeValues, TheFirstLossIn16BitsIsTheSources) {
  for (const char* precision : {"bf16", "fp16"}) {
    for (const Grid& grid : {Grid{}, Grid{.tp = 2, .pp = 2}, Grid{.dp = 2, .sharding = Sharding::optimizer}}) {
      SCOPED_TRACE(str(precision, " ", grid.name()));
      const TempDir dir;
      const std::shared_ptr<io::Fs> fs = io::posix_fs();
      const auto plan_of = [&](Index seed) {
        config::RunConfig config = support::small_config(grid, precision, 1);
        config.model.dropout = 0;
        config.train.seed = seed;
        return config::resolve(config);
      };
      const config::RunPlan source = plan_of(7), taker = plan_of(8);
      std::array<double, 3> losses{}, evaluated{};  // of the source, of the run with its values, of that run's own
      const support::HashedBatches batches(source.model.vocab_size);
      const auto run = [&](const config::RunPlan& plan, std::size_t i, auto&& begin) {
        comm::run_ranks(grid.ranks(), [&](comm::World& world) {
          train::Engine engine(world, plan);
          engine.allocate();
          train::Saver saver(engine, plan, {1, 2}, *fs, dir / str("run", i));
          begin(saver);
          const double before = engine.evaluate(batches, plan.train.global_batch);
          const double loss = engine.step(batches, {}, train::Stop::no).loss;
          if (world.rank() == 0) evaluated[i] = before, losses[i] = loss;
        });
      };
      run(source, 0, [](train::Saver& saver) { saver.save({}); });
      run(taker, 1, [&](train::Saver& saver) { saver.take_values(dir / "run0" / "step_00000000"); });
      run(taker, 2, [](train::Saver&) {});
      EXPECT_EQ(losses[1], losses[0]);
      EXPECT_EQ(evaluated[1], evaluated[0]);
      EXPECT_NE(losses[2], losses[0]) << "without the source's values it is another model";
    }
  }
}

TEST(TakeValues, LeavesTheOptimizerFresh) {
  const TempDir dir;
  support::train_and_save(support::small_plan({}, "fp64", kTakenSteps), dir.path(), 0, kTakenAt);
  config::RunPlan plan = support::small_plan({}, "fp64", kTakenSteps);
  plan.train.seed = 5;  // of which a resume would have something to say
  comm::run_ranks(1, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    train::Saver saver(engine, plan, {1, 3}, *fs, dir / "unused");
    saver.take_values(dir / "step_00000002");
    EXPECT_EQ(engine.optimizer_state().updates, 0);
    for (const Tensor& moment : {engine.optimizers().front().m(), engine.optimizers().front().v()}) {
      const std::span<const double> values(moment.data<double>(), static_cast<std::size_t>(moment.numel()));
      EXPECT_TRUE(std::ranges::all_of(values, [](double value) { return value == 0; }));
    }
  });
}

TEST(TakeValues, RefusesWhatDoesNotFitAndWhatIsDamaged) {
  const TempDir dir;
  support::train_and_save(support::small_plan({}, "fp64", kTakenSteps), dir.path(), 0, kTakenAt);
  const auto error_of = [&](const config::RunPlan& plan, std::uint64_t vocabulary) -> std::string {
    std::string text;
    comm::run_ranks(1, [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      try {
        train::Saver(engine, plan, {vocabulary, 2}, *io::posix_fs(), dir / "unused").take_values(dir / "step_00000002");
      } catch (const Error& error) {
        text = str(static_cast<int>(error.code()), ' ', error.what());
      }
    });
    return text;
  };
  config::RunConfig other = support::small_config({}, "fp32", kTakenSteps);
  other.model.num_heads = 2;
  const std::string refused = error_of(config::resolve(other), 9);
  EXPECT_TRUE(refused.starts_with("66 [train.init] ")) << refused;
  EXPECT_NE(refused.find("does not fit the recipe:\n  model.num_heads = 2: the checkpoint's model has 4\n"
                         "  train.precision = fp32: the checkpoint's values are of fp64\n"
                         "  data.tokenizer: its vocabulary differs from the checkpoint's"),
            std::string::npos)
      << refused;
  const io::Path shard = dir / "step_00000002" / checkpoint::shard_file_name(0);
  std::fstream(shard, std::ios::in | std::ios::out).seekp(3000).put('X');
  const std::string damaged = error_of(support::small_plan({}, "fp64", kTakenSteps), 1);
  EXPECT_TRUE(damaged.starts_with("65 [train.init] ")) << damaged;
  EXPECT_NE(damaged.find("shard_00000.safetensors"), std::string::npos) << damaged;
}

// Router and losses of experts have no parameters by which they could be told apart.
TEST(TakeValues, RefusesOtherExpertsAndTakesOtherLosses) {
  const TempDir dir;
  config::RunConfig saved = support::small_config({}, "fp64", kTakenSteps);
  saved.moe.num_experts = 4;
  const config::RunPlan plan = config::resolve(saved);
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    train::Saver(engine, plan, {1, 2}, *io::posix_fs(), dir.path()).save({});
  });
  config::RunConfig other = saved;
  other.moe.top_k = 1;
  other.moe.scale = 2.5;
  other.moe.aux_loss = 0.5;
  config::RunConfig losses = saved;
  losses.moe.aux_loss = 0.5;
  losses.moe.z_loss = 0.1;
  losses.moe.capacity = "drop";
  losses.moe.capacity_factor = 1.0;
  other.parallel.ranks = losses.parallel.ranks = 2;
  comm::run_ranks(2, [&](comm::World& world) {
    for (const config::RunConfig* const recipe : {&other, &losses}) {
      const config::RunPlan now = config::resolve(*recipe);
      train::Engine engine(world, now);
      engine.allocate();
      std::string refused;
      try {
        EXPECT_TRUE(train::Saver(engine, now, {1, 5}, *io::posix_fs(), dir / "unused")
                        .take_values(dir / "step_00000000")
                        .empty());
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.code(), ExitCode::checkpoint_refused);
        refused = error.what();
      }
      const std::size_t lines = refused.find(":\n");
      EXPECT_EQ(refused.empty() ? "" : refused.substr(lines), recipe == &losses
                                                                  ? ""
                                                                  : ":\n  moe.top_k = 1: the checkpoint's model has 2\n"
                                                                    "  moe.scale = 2.5: the checkpoint's model has 1");
    }
  });
}

}  // namespace
}  // namespace megalith
