#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/train/run_memory.h"

#include "tests/io/temp_dir.h"
#include "tests/train/echo_run.h"
#include "tests/train/resumed_run.h"

// Muon orthogonalises each expert's matrices as a whole, wherever its slices are.
namespace megalith {
namespace {

using support::MoeGrid;
using support::MoeModel;
using support::RunRecord;
using enum nn::SequenceParallel;

constexpr Index kExpertSteps = 4;

/// A gate for each unit and shared experts; or GELU, with as many experts as few grids divide, and layers without any.
const std::vector<MoeModel>& muon_models() {
  static const std::vector<MoeModel> models = {{"Gated",
                                                [](config::RunConfig& c) {
                                                  c.moe.shared_ffn_hidden_size = 8;
                                                  c.moe.shared_gate = true;
                                                }},
                                               {"Gelu", [](config::RunConfig& c) {
                                                  c.model.family = "gpt2";
                                                  c.moe.num_experts = 12;
                                                  c.moe.pattern = "dm";
                                                }}};
  return models;
}

config::RunConfig muon_experts_config(const MoeGrid& grid, const MoeModel& model, const std::string& precision) {
  config::RunConfig c = support::moe_config(grid, model, precision, kExpertSteps);
  c.optimizer.type = "muon";
  return c;
}

/// What a run leaves behind.
struct MuonExpertsRun : RunRecord {
  explicit MuonExpertsRun(const config::RunConfig& recipe, nn::RouterDecisions* decisions = nullptr) {
    support::run_moe(config::resolve(recipe), *this, decisions);
  }
};

/// Experts over ep, cut by etp, and on several copies of the model (edp).
std::vector<MoeGrid> muon_expert_grids() {
  return {{4, 1, 1, 2, 1},
          {4, 1, 1, 1, 1, 1, off, Sharding::optimizer},
          {4, 2, 1, 1, 2, 1, on, Sharding::optimizer},
          {4, 1, 1, 1, 2},
          {8, 2, 2, 2, 2, 2, on, Sharding::optimizer}};
}

TEST(MuonExperts, Fp64AgreesWithOneRank) {
  for (const MoeModel& model : muon_models()) {
    const MuonExpertsRun want(muon_experts_config({}, model, "fp64"));
    for (const MoeGrid& grid : muon_expert_grids()) {
      SCOPED_TRACE(std::string(model.name) + " " + grid.name());
      support::expect_fp64_agrees(MuonExpertsRun(muon_experts_config(grid, model, "fp64")), want);
    }
  }
}

TEST(MuonExperts, AShardedOptimizerHasTheBitsOfThePlainOne) {
  for (const char* precision : {"fp32", "bf16"}) {
    const auto on_shards = [&](Sharding sharding) {
      return muon_experts_config({4, 1, 1, 2, 1, 1, off, sharding}, muon_models().front(), precision);
    };
    const MuonExpertsRun plain(on_shards(Sharding::none)), sharded(on_shards(Sharding::optimizer));
    EXPECT_EQ(sharded.losses, plain.losses) << precision;
    EXPECT_EQ(sharded.norms, plain.norms) << precision;
    EXPECT_EQ(sharded.evaluated, plain.evaluated) << precision;
  }
}

TEST(MuonExperts, ClonesOfExpertsChangeNothing) {
  config::RunConfig recipe = muon_experts_config({4, 1, 1, 4, 1}, muon_models().front(), "fp64");
  recipe.moe.router_skew = support::kSkew;
  const MuonExpertsRun want(recipe);
  recipe.moe.echo.slots = 1;
  recipe.moe.echo.min_pairs = 0;
  const MuonExpertsRun got(recipe);
  EXPECT_GT(got.clones, 0);
  support::expect_fp64_agrees(got, want);
}

// Clones have no moments, and matrices one. Parameters begin at multiples of 128 elements.
TEST(MuonExperts, TheOptimizerShrinksByTheMatrices) {
  for (const Index slots : {0, 2}) {
    config::RunConfig recipe = muon_experts_config({4, 1, 1, 4, 1}, muon_models().front(), "fp32");
    recipe.moe.echo.slots = slots;
    const Index of_muon = train::planned_bytes(config::resolve(recipe), 0).at("optimizer");
    recipe.optimizer.type = "adamw";
    const config::RunPlan plan = config::resolve(recipe);
    const auto& m = plan.model;
    const Index h = m.hidden_size, q = m.num_heads * m.head_width(), kv = m.kv_heads() * m.head_width();
    const Index f = 2 * m.moe.ffn_hidden_size, shared = m.moe.shared_ffn_hidden_size;  // two experts on a rank
    Index in_layer = 0;
    for (const Index numel : {h * (q + 2 * kv), h * q, 2 * h * f, h * f, 2 * h * shared, h * shared, 8 * h})
      in_layer += round_up(numel, 128);
    EXPECT_EQ(train::planned_bytes(plan, 0).at("optimizer") - of_muon, m.num_layers * in_layer * 4);
  }
}

TEST(MuonExperts, ACheckpointGoesToAnyGrid) {
  constexpr Index kExpertsSavedAt = 2;
  const MoeModel& model = muon_models().front();
  const MuonExpertsRun whole(muon_experts_config({}, model, "fp64"));
  const std::vector<double> want(whole.losses.begin() + kExpertsSavedAt, whole.losses.end());
  const MoeGrid sharded{4, 1, 1, 2, 1, 1, off, Sharding::optimizer};
  for (const MoeGrid& from : {MoeGrid{}, sharded}) {
    const TempDir dir;
    const auto plan_on = [&](const MoeGrid& grid) { return config::resolve(muon_experts_config(grid, model, "fp64")); };
    const support::Trained saved = support::train_and_save(plan_on(from), dir.path(), 0, kExpertsSavedAt);
    for (const MoeGrid& to : {MoeGrid{4, 1, 1, 4, 1}, MoeGrid{4, 2, 2, 1, 2, 2, on}, sharded}) {
      SCOPED_TRACE(from.name() + " to " + to.name());
      const support::Trained resumed = support::train_and_save(plan_on(to), dir.path(), kExpertsSavedAt, kExpertSteps);
      EXPECT_EQ(resumed.digest.hex(), saved.digest.hex());
      EXPECT_LT(support::relative_error(resumed.losses, want), 1e-12);
    }
  }
}

TEST(MuonExperts, SixteenBitsTrainNearly) {
  const MoeModel& model = muon_models().front();
  const config::RunConfig recipe = muon_experts_config({}, model, "fp32");
  support::KeptDecisions decisions(config::resolve(recipe), nn::RouterDecisions::Use::record);
  const MuonExpertsRun want(recipe, &decisions);
  for (const char* precision : {"bf16", "fp16"}) {
    for (const MoeGrid& grid : {MoeGrid{}, MoeGrid{4, 2, 1, 2, 1, 1, on, Sharding::optimizer}}) {
      SCOPED_TRACE(std::string(precision) + " " + grid.name());
      RunRecord got;
      support::run_replayed(config::resolve(muon_experts_config(grid, model, precision)), decisions, got);
      EXPECT_LT(support::relative_error(got.losses, want.losses), 0.02);
    }
  }
}

}  // namespace
}  // namespace megalith
