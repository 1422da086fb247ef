#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"
#include "tests/train/agreeing_runs.h"
#include "tests/train/resumed_run.h"

// Muon orthogonalises whole matrices, so that every grid trains the same model.
namespace megalith {
namespace {

using support::Grid;
using support::RunRecord;

constexpr Index kMuonSteps = 8;

/// Llama's parts (4 kv heads for 8 heads, gates and ups), or GPT-2's.
config::RunPlan muon_plan(const Grid& grid, const std::string& precision, const char* family) {
  config::RunConfig c = support::small_config(grid, precision, kMuonSteps);
  c.optimizer.type = "muon";
  c.model.family = family;
  if (std::string_view(family) == "llama") {
    c.model.num_heads = 8;
    c.model.num_kv_heads = 4;
    c.model.head_dim = 6;
  }
  return config::resolve(c);
}

/// What a run leaves behind.
struct MuonRun : RunRecord {
  explicit MuonRun(const config::RunPlan& plan) {
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) { support::train_rank(world, plan, *this); });
  }
};

std::vector<Grid> muon_grids() {
  constexpr auto kShared = nn::SequenceParallel::on;
  return {{.tp = 2},
          {.tp = 4, .sequence_parallel = kShared},
          {.pp = 2, .chunks = 2},
          {.dp = 4},
          {.dp = 4, .sharding = Sharding::optimizer},
          {.tp = 2, .pp = 2, .dp = 2, .sharding = Sharding::optimizer, .sequence_parallel = kShared}};
}

TEST(MuonGrids, Fp64AgreesWithOneRank) {
  for (const char* family : {"gpt2", "llama"}) {
    const MuonRun want(muon_plan({}, "fp64", family));
    for (const Grid& grid : muon_grids()) {
      SCOPED_TRACE(family + (" " + grid.name()));
      const MuonRun got(muon_plan(grid, "fp64", family));
      EXPECT_LT(support::relative_error(got.losses, want.losses), 1e-12);
      EXPECT_LT(support::relative_error(got.norms, want.norms), 1e-11);
      EXPECT_THAT(got.parameters.disagreeing(), ::testing::IsEmpty());
    }
  }
}

TEST(MuonGrids, AShardedOptimizerHasTheBitsOfThePlainOne) {
  for (const char* precision : {"fp32", "bf16"}) {
    const MuonRun plain(muon_plan({.tp = 2, .dp = 2}, precision, "llama")),
        sharded(muon_plan({.tp = 2, .dp = 2, .sharding = Sharding::optimizer}, precision, "llama"));
    EXPECT_EQ(sharded.losses, plain.losses) << precision;
    EXPECT_EQ(sharded.norms, plain.norms) << precision;
    EXPECT_EQ(sharded.evaluated, plain.evaluated) << precision;
  }
}

TEST(MuonGrids, TheSmallModelLearns) {
  config::RunConfig c = support::small_config({}, "fp64");
  c.optimizer.type = "muon";
  const MuonRun run(config::resolve(c));
  EXPECT_LT(run.losses.back(), run.losses.front() - 0.2);
}

TEST(MuonGrids, ItIsNotAdamW) {
  const MuonRun muon(muon_plan({}, "fp64", "gpt2"));
  RunRecord adamw;
  support::train_on({}, "fp64", adamw, kMuonSteps);
  EXPECT_EQ(muon.losses[0], adamw.losses[0]);
  EXPECT_NE(muon.losses[2], adamw.losses[2]);
}

TEST(MuonGrids, SixteenBitsTrainNearly) {
  const MuonRun want(muon_plan({}, "fp32", "llama"));
  for (const char* precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    for (const Grid& grid : {Grid{}, Grid{.tp = 2, .dp = 2, .sharding = Sharding::optimizer}}) {
      const MuonRun got(muon_plan(grid, precision, "llama"));
      EXPECT_LT(support::relative_error(got.losses, want.losses), 0.02) << grid.name();
    }
  }
}

TEST(MuonGrids, ACheckpointGoesToAnyGrid) {
  constexpr Index kMuonSavedAt = 3;
  const MuonRun whole(muon_plan({}, "fp64", "llama"));
  const std::vector<double> want(whole.losses.begin() + kMuonSavedAt, whole.losses.end());
  const Grid grids[] = {{}, {.tp = 2, .pp = 2, .dp = 2, .sharding = Sharding::optimizer}, {.tp = 4}};
  for (const Grid& from : grids) {
    const TempDir dir;
    const support::Trained saved =
        support::train_and_save(muon_plan(from, "fp64", "llama"), dir.path(), 0, kMuonSavedAt);
    for (const Grid& to : grids) {
      SCOPED_TRACE(from.name() + " to " + to.name());
      const support::Trained resumed =
          support::train_and_save(muon_plan(to, "fp64", "llama"), dir.path(), kMuonSavedAt, kMuonSteps);
      EXPECT_EQ(resumed.digest.hex(), saved.digest.hex());
      EXPECT_LT(support::relative_error(resumed.losses, want), 1e-12);
    }
  }
}

TEST(MuonGrids, AnAdamWCheckpointIsRefused) {
  const TempDir dir;
  support::train_and_save(support::small_plan({}, "fp64", kMuonSteps), dir.path(), 0, 1);
  try {
    support::train_and_save(muon_plan({}, "fp64", "gpt2"), dir.path(), 1, 2);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("optimizer.type = muon: the checkpoint was trained with "));
  }
}

}  // namespace
}  // namespace megalith
