#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/ops/masters.h"
#include "megalith/train/state_pieces.h"

#include "tests/io/temp_dir.h"
#include "tests/train/agreeing_runs.h"
#include "tests/train/moe_run.h"
#include "tests/train/resumed_run.h"

// Moments in bf16 are rounded by words of global elements: every grid rounds alike.
namespace megalith {
namespace {

using support::Grid;
using support::RunRecord;

constexpr Index kMomentSteps = 5;

config::RunConfig moments_config(const Grid& grid, const std::string& precision, const char* moments = "bf16") {
  config::RunConfig c = support::small_config(grid, precision, kMomentSteps);
  c.optimizer.moments = moments;
  return c;
}

config::RunPlan moments_plan(const Grid& grid, const std::string& precision, const char* moments = "bf16") {
  return config::resolve(moments_config(grid, precision, moments));
}

/// What a run leaves behind, with its moments.
struct MomentsRun : RunRecord {
  support::Gathered moments;

  explicit MomentsRun(const config::RunPlan& plan) {
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) { run_rank(world, plan); });
  }

 private:
  void run_rank(comm::World& world, const config::RunPlan& plan) {
    train::Engine engine(world, plan);
    engine.allocate();
    const support::HashedBatches source(plan.model.vocab_size);
    train::Progress progress;
    for (Index step = 0; step < plan.train.steps; ++step) {
      const train::StepReport report = engine.step(source, progress, train::Stop::no);
      progress = {step + 1, progress.samples + plan.train.batch_after(progress.samples)};
      if (world.rank() != 0) continue;
      losses.push_back(report.loss);
      norms.push_back(report.grad_norm);
    }
    const double loss = engine.evaluate(source, 2 * plan.train.global_batch);  // gathers the parameters
    if (world.rank() == 0) evaluated = loss;
    support::put_params(parameters, engine.stage(), false);
    for (const train::StatePiece& piece :
         train::updated_pieces(engine.stage().params(), engine.optimizers(), train::StateTensors::values_and_moments)) {
      if (piece.slice.name.starts_with("optimizer.")) moments.put(piece.slice, piece.values.whole);
    }
  }
};

/// Elements of all tensors that differ, and are larger than `floor` in `want`.
Index differing(const support::Gathered& got, const support::Gathered& want, double floor = -1) {
  EXPECT_EQ(got.tensors().size(), want.tensors().size());
  Index count = 0;
  for (const auto& [name, values] : want.tensors()) {
    const std::vector<double>& others = got.at(name);
    EXPECT_EQ(others.size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i)
      count += others[i] != values[i] && std::abs(values[i]) > floor ? 1 : 0;
  }
  return count;
}

std::vector<Grid> moments_grids() {
  constexpr auto kShared = nn::SequenceParallel::on;
  return {{.tp = 2},
          {.pp = 2, .chunks = 2},
          {.dp = 4, .sharding = Sharding::optimizer},
          {.tp = 2, .pp = 2, .dp = 2, .sharding = Sharding::optimizer, .sequence_parallel = kShared}};
}

// Gradients of grids differ by 1e-16 of their size. A border of the rounding lies between two of them for one element
// in 1e9. The gradient of a key's bias is 0 but for rounding errors, as a softmax ignores a shift: its moments are
// noise.
TEST(RoundedMomentsOfGrids, Fp64HasTheMomentsOfOneRank) {
  const MomentsRun want(moments_plan({}, "fp64"));
  for (const Grid& grid : moments_grids()) {
    SCOPED_TRACE(grid.name());
    const MomentsRun got(moments_plan(grid, "fp64"));
    EXPECT_EQ(differing(got.moments, want.moments, 1e-14), 0);
    EXPECT_THAT(got.moments.disagreeing(), ::testing::IsEmpty());
    EXPECT_THAT(got.parameters.disagreeing(), ::testing::IsEmpty());
    EXPECT_LT(support::relative_error(got.losses, want.losses), 1e-12);
  }
}

TEST(RoundedMomentsOfGrids, ExpertsHaveThemToo) {
  const auto plan = [](const support::MoeGrid& grid) {
    config::RunConfig c = support::moe_config(grid, support::moe_models().front(), "fp64", 3);
    c.optimizer.moments = "bf16";
    return config::resolve(c);
  };
  const MomentsRun want(plan({})), got(plan({.ranks = 4, .tp = 2, .ep = 2, .etp = 2}));
  EXPECT_EQ(differing(got.moments, want.moments, 1e-14), 0);
}

// Sums of f32 differ in the last bits: few moments cross a border, and a border is 2^-8 of a number.
TEST(RoundedMomentsOfGrids, Fp32AgreesNearly) {
  const MomentsRun want(moments_plan({}, "fp32")), f32(moments_plan({}, "fp32", "f32"));
  EXPECT_EQ(f32.losses[0], want.losses[0]);
  EXPECT_NE(f32.losses.back(), want.losses.back()) << "the moments are not rounded";
  EXPECT_LT(support::relative_error(want.losses, f32.losses), 2e-3);
  for (const Grid& grid : {Grid{.tp = 2}, Grid{.dp = 2, .sharding = Sharding::optimizer}})
    EXPECT_LT(support::relative_error(MomentsRun(moments_plan(grid, "fp32")).losses, want.losses), 1e-4) << grid.name();
}

TEST(RoundedMomentsOfGrids, AShardedOptimizerHasTheBitsOfThePlainOne) {
  for (const char* precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const MomentsRun plain(moments_plan({.tp = 2, .dp = 2}, precision)),
        sharded(moments_plan({.tp = 2, .dp = 2, .sharding = Sharding::optimizer}, precision));
    EXPECT_EQ(sharded.losses, plain.losses);
    EXPECT_EQ(sharded.norms, plain.norms);
    EXPECT_EQ(differing(sharded.moments, plain.moments), 0);
  }
}

TEST(RoundedMomentsOfGrids, ACheckpointGoesToAnyGrid) {
  constexpr Index kMomentsSavedAt = 3;
  const MomentsRun whole(moments_plan({}, "fp64"));
  const std::vector<double> want(whole.losses.begin() + kMomentsSavedAt, whole.losses.end());
  const Grid grids[] = {{}, {.tp = 2, .pp = 2, .dp = 2, .sharding = Sharding::optimizer}};
  for (const Grid& from : grids) {
    const TempDir dir;
    const support::Trained saved = support::train_and_save(moments_plan(from, "fp64"), dir.path(), 0, kMomentsSavedAt);
    for (const Grid& to : grids) {
      SCOPED_TRACE(from.name() + " to " + to.name());
      const support::Trained resumed =
          support::train_and_save(moments_plan(to, "fp64"), dir.path(), kMomentsSavedAt, kMomentSteps);
      EXPECT_EQ(resumed.digest.hex(), saved.digest.hex());
      EXPECT_LT(support::relative_error(resumed.losses, want), 1e-12);
    }
  }
}

TEST(RoundedMomentsOfGrids, OnTheSameGridAResumedRunHasTheBitsOfAnUninterruptedOne) {
  for (const char* precision : {"bf16", "fp16"}) {
    const config::RunPlan plan = moments_plan({.dp = 2, .sharding = Sharding::optimizer}, precision);
    const MomentsRun whole(plan);
    const TempDir dir;
    support::train_and_save(plan, dir.path(), 0, 2);
    const support::Trained resumed = support::train_and_save(plan, dir.path(), 2, kMomentSteps);
    EXPECT_EQ(resumed.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end())) << precision;
  }
}

/// The state after resume() of what is in `folder`.
struct ResumedMoments {
  std::vector<std::string> warnings;
  support::Gathered state;

  ResumedMoments(const config::RunPlan& plan, const io::Path& folder) {
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
      const std::shared_ptr<io::Fs> fs = io::posix_fs();
      train::Engine engine(world, plan);
      engine.allocate();
      const train::Resumed resumed = train::Saver(engine, plan, {1, 2}, *fs, folder).resume().value();
      Buffer memory;
      for (const train::StatePiece& piece :
           train::updated_pieces(engine.stage().params(), engine.optimizers(), train::StateTensors::values_and_moments))
        state.put(piece.slice, ops::readable(engine.exec(), piece.values, memory));
      if (world.rank() == 0) warnings = resumed.warnings;
    });
  }
};

TEST(RoundedMomentsOfGrids, MomentsOfAnotherTypeAreConverted) {
  const Grid sharded{.tp = 2, .dp = 2, .sharding = Sharding::optimizer};
  for (const auto& [from, to] : {std::pair("f32", "bf16"), std::pair("bf16", "f32")}) {
    SCOPED_TRACE(str(from, " to ", to));
    const TempDir dir;
    support::train_and_save(moments_plan(sharded, "bf16", from), dir.path(), 0, 2);
    const ResumedMoments as_saved(moments_plan({}, "bf16", from), dir.path()),
        converted(moments_plan({}, "bf16", to), dir.path()), cut(moments_plan(sharded, "bf16", to), dir.path());
    EXPECT_THAT(as_saved.warnings, ::testing::IsEmpty());
    EXPECT_THAT(converted.warnings,
                ::testing::ElementsAre(str("optimizer.moments = ", to, ": the checkpoint was trained with ", from,
                                           "; its moments are converted")));
    EXPECT_EQ(differing(cut.state, converted.state), 0);
    for (const auto& [name, values] : as_saved.state.tensors()) {
      const std::vector<double>& got = converted.state.at(name);
      const bool is_rounded = name.starts_with("optimizer.") && std::string_view(to) == "bf16";
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto saved = static_cast<float>(values[i]);
        EXPECT_EQ(static_cast<float>(got[i]), is_rounded ? static_cast<float>(bfloat16(saved)) : saved) << name;
        if (HasFailure()) return;
      }
    }
  }
}

TEST(RoundedMomentsOfGrids, TakeHalfOfTheMemory) {
  const auto optimizer_bytes = [](const char* moments) {
    const std::unique_ptr<comm::World> world = comm::dry_world(0, 1);
    const config::RunPlan plan = moments_plan({}, "bf16", moments);
    train::Engine engine(*world, plan);
    const ParamBuffer& params = engine.stage().params().dense();
    return std::tuple(engine.planned_bytes().at("optimizer"), params.numel(), std::ssize(params.params()));
  };
  const auto [f32, numel, params] = optimizer_bytes("f32");
  const Index groups = numel / ops::kDecayGroup;
  EXPECT_EQ(f32, 8 * numel + groups);
  EXPECT_EQ(std::get<0>(optimizer_bytes("bf16")), 4 * numel + 5 * groups + params * Index{sizeof(ops::RoundedParam)});
}

TEST(RoundedMomentsOfGrids, MuonsMomentIsRefused) {
  config::RunConfig c = moments_config({}, "bf16");
  c.optimizer.type = "muon";
  try {
    config::resolve(c);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("optimizer.moments = bf16: does not go with optimizer.type = muon"));
  }
}

}  // namespace
}  // namespace megalith
