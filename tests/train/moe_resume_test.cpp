#include <gtest/gtest.h>

#include "tests/io/temp_dir.h"
#include "tests/train/moe_run.h"
#include "tests/train/resumed_run.h"

// Models with experts, saved on any grid and resumed on any other: expert weights are global tensors, so checkpoints
// know nothing of ep and etp.
namespace megalith {
namespace {

using support::MoeGrid;
using support::MoeModel;

constexpr Index kSavedAt = 2, kSteps = 4;

const std::vector<MoeGrid>& resume_grids() {
  using enum nn::SequenceParallel;
  static const std::vector<MoeGrid> grids = {
      {1, 1, 1, 1, 1}, {2, 1, 1, 2, 1}, {4, 1, 1, 4, 1},         {2, 1, 1, 1, 2},
      {4, 1, 1, 2, 2}, {2, 2, 1, 1, 2}, {4, 2, 1, 2, 1},         {4, 2, 1, 2, 2, 1, on},
      {4, 2, 2, 1, 1}, {4, 1, 2, 2, 1}, {4, 1, 2, 2, 1, 2, off}, {4, 1, 1, 2, 1, 1, off, Sharding::optimizer}};
  return grids;
}

/// A bias that no gradient updates and the counts of the step before are state, too.
const MoeModel kStateful{"BiasAndGlobalLoss", [](config::RunConfig& c) {
                           c.moe.score = "sigmoid";
                           c.moe.expert_bias_rate = 0.01;
                           c.moe.aux_loss = 0.05;
                           c.moe.aux_scope = "global";
                           c.moe.shared_ffn_hidden_size = 8;
                         }};

class MoeResumeEverywhere : public ::testing::TestWithParam<MoeGrid> {};

TEST_P(MoeResumeEverywhere, EveryGridGoesOnAsIfNothingHadHappened) {
  for (const auto& [precision, tolerance] : {std::pair{"fp64", 1e-12}, {"fp32", 1e-6}}) {
    const TempDir dir;
    const auto plan_on = [&, p = precision](const MoeGrid& grid) {
      return config::resolve(moe_config(grid, kStateful, p, kSteps));
    };
    support::RunRecord whole;
    const config::RunPlan of_one = plan_on({});
    support::KeptDecisions decisions(of_one, nn::RouterDecisions::Use::record);
    support::run_moe(of_one, whole, &decisions);
    decisions.start_replay();
    // In fp32 rounding may turn a choice: the runs are compared under the same ones.
    const auto repeated = [&, p = precision](config::RunPlan plan) {
      if (std::string_view(p) == "fp32") plan.model.moe.replay = "kept";
      return plan;
    };
    const support::Trained saved =
        support::train_and_save(repeated(plan_on(GetParam())), dir.path(), 0, kSavedAt, &decisions);
    for (const MoeGrid& other : resume_grids()) {
      const support::Trained resumed =
          support::train_and_save(repeated(plan_on(other)), dir.path(), kSavedAt, kSteps, &decisions);
      EXPECT_EQ(resumed.digest.hex(), saved.digest.hex()) << other.name();
      const std::vector<double> want(whole.losses.begin() + kSavedAt, whole.losses.end());
      EXPECT_LT(support::relative_error(resumed.losses, want), tolerance)
          << precision << ", resumed on " << other.name();
    }
  }
}

/// A load loss may change from a checkpoint to the run that goes on with it, and with it what rules keep.
TEST(MoeResume, StateThatTheCheckpointLacksStartsAtZeroAndOtherIsLeftOut) {
  const MoeModel stateless{"Sequence", [](config::RunConfig& c) {
                             c.moe.score = "sigmoid";
                             c.moe.aux_loss = 0.05;
                             c.moe.aux_scope = "sequence";
                             c.moe.shared_ffn_hidden_size = 8;
                           }};
  for (const MoeGrid& grid : {MoeGrid{1, 1, 1, 1, 1}, MoeGrid{4, 1, 2, 2, 1}, MoeGrid{4, 2, 1, 2, 1}}) {
    const auto plan_of = [&](const MoeModel& model) {
      return config::resolve(moe_config(grid, model, "fp64", kSteps));
    };
    for (const auto& [before, after] : {std::pair{&stateless, &kStateful}, {&kStateful, &stateless}}) {
      const TempDir dir;
      support::train_and_save(plan_of(*before), dir.path(), 0, kSavedAt);
      const support::Trained same = support::train_and_save(plan_of(*before), dir.path(), kSavedAt, kSteps),
                             other = support::train_and_save(plan_of(*after), dir.path(), kSavedAt, kSteps);
      EXPECT_NE(other.digest, same.digest) << "of another state";
      ASSERT_EQ(other.losses.size(), same.losses.size());
      if (before == &stateless) {
        EXPECT_EQ(other.losses[0], same.losses[0]) << "biases of 0 choose as none do";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MoeResumeEverywhere, ::testing::ValuesIn(resume_grids()),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace megalith
