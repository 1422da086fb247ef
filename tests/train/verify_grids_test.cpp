#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/io/fs.h"
#include "megalith/train/grid_verify.h"
#include "megalith/train/step_values.h"

#include "tests/train/small_run.h"

// Two grids whose recipes differ in one number, as bugs make grids differ: the tensor, the op and what it did are
// named.
namespace megalith {
namespace {

using support::Grid;
using testing::Contains;
using testing::ElementsAre;
using testing::StartsWith;
using train::VerifyResult;

class HashedData final : public train::RunData {
 public:
  Facts train() const override { return {"hashed", 1 << 20, 1 << 16, 1}; }
  Facts valid() const override { return {}; }
  std::unique_ptr<model::BatchSource> train_batches() const override {
    return std::make_unique<support::HashedBatches>(37);
  }
  std::vector<HeldOut> held_out() const override { return {}; }
  const data::DataNotes& notes() const override { return notes_; }

 private:
  data::DataNotes notes_;
};

config::RunConfig verified_config(const Grid& grid, const std::string& precision) {
  config::RunConfig c = support::small_config(grid, precision, 4);
  c.model.num_layers = 4;
  return c;
}

void as_llama(config::RunConfig& c) {
  c.model.family = "llama";
  c.model.head_dim = 6;  // RoPE turns pairs
}

void with_experts(config::RunConfig& c) {
  as_llama(c);
  c.moe.num_experts = 4;
  c.moe.top_k = 2;
  c.moe.aux_loss = 0.01;
  c.moe.expert_bias_rate = 0.01;
  c.moe.score = "sigmoid";
}

using Change = void (*)(config::RunConfig&);

/// Two recipes, as verify trains them by default: below fp64 it compares the ops of the first step.
VerifyResult verify_recipes(const config::RunConfig& one, const config::RunConfig& other) {
  const config::RunPlan a = config::resolve(one), b = config::resolve(other);
  const HashedData data;
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  return train::verify_grids({.plans = {&a, &b},
                              .data = data,
                              .identity = {},
                              .fs = *fs,
                              .steps = 2,
                              .ops_of_step = a.train.precision == "fp64" ? 0 : 1});
}

/// One rank, and a grid whose recipe a bug has changed. `set`: for both.
VerifyResult verify_changed(const Grid& grid, Change set, Change bug, const std::string& precision = "fp64") {
  config::RunConfig one = verified_config({}, precision), other = verified_config(grid, precision);
  one.train.micro_batch = other.train.micro_batch;
  for (config::RunConfig* const c : {&one, &other}) set(*c);
  bug(other);
  return verify_recipes(one, other);
}

const Change kNothing = [](config::RunConfig&) {};

TEST(VerifyGrids, EqualRecipesAgree) {
  EXPECT_TRUE(verify_changed({.tp = 2, .pp = 2}, kNothing, kNothing).agree());
  EXPECT_TRUE(verify_changed({.dp = 2}, with_experts, kNothing).agree());
}

// A window holds the gradients of several layers in turn, and of each microbatch anew.
TEST(VerifyGrids, ShardedGradientsAgreeOpByOp) {
  const Grid sharded{.tp = 2, .dp = 2, .sharding = Sharding::optimizer, .shard = ShardedState::gradients};
  for (const Change set : {kNothing, Change(with_experts)}) {
    config::RunConfig one = verified_config({}, "fp64"), other = verified_config(sharded, "fp64");
    for (config::RunConfig* const c : {&one, &other}) set(*c);
    const config::RunPlan a = config::resolve(one), b = config::resolve(other);
    const HashedData data;
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    const VerifyResult found =
        train::verify_grids({.plans = {&a, &b}, .data = data, .identity = {}, .fs = *fs, .steps = 2, .ops_of_step = 2});
    EXPECT_TRUE(found.agree());
    ASSERT_TRUE(found.ops);
    EXPECT_GT(found.ops->compared, 100);
    EXPECT_FALSE(found.ops->first) << found.ops->first->key.op << " of " << found.ops->first->gradient_of;
  }
}

TEST(VerifyGrids, AnUpdateWithAnotherRateIsNamedByItsFactor) {
  const VerifyResult found =
      verify_changed({.pp = 2}, kNothing, [](config::RunConfig& c) { c.optimizer.lr = 6e-3, c.optimizer.min_lr = 0; });
  ASSERT_FALSE(found.agree());
  EXPECT_EQ(found.steps, 1);
  ASSERT_NE(found.first_tensor(), nullptr);
  EXPECT_EQ(found.first_tensor()->name, "embedding.position.weight");
  EXPECT_FALSE(found.ops->first) << "passes agree";
  for (const auto& writers : found.last_writers) EXPECT_THAT(writers, ElementsAre("adamw"));
  ASSERT_TRUE(found.changes);
  EXPECT_NEAR(found.changes->times, 2, 1e-6);
}

TEST(VerifyGrids, AnotherClipFactorIsFoundInMoments) {
  const VerifyResult found = verify_changed(
      {.tp = 2}, [](config::RunConfig& c) { c.optimizer.clip = 1e-3; },
      [](config::RunConfig& c) { c.optimizer.clip = 2e-3; });
  ASSERT_FALSE(found.agree());
  EXPECT_THAT(found.first_tensor()->name, StartsWith("optimizer.m."));
  ASSERT_TRUE(found.changes);
  EXPECT_NEAR(found.changes->times, 2, 1e-6);
}

TEST(VerifyGrids, AnOpOfAPassIsNamed) {
  for (const char* precision : {"fp64", "fp32"}) {
    SCOPED_TRACE(precision);
    const VerifyResult found = verify_changed(
        {.tp = 2}, as_llama, [](config::RunConfig& c) { c.model.rope_theta = 100; }, precision);
    ASSERT_FALSE(found.agree());
    ASSERT_FALSE(found.agree());
    ASSERT_TRUE(found.ops && found.ops->first);
    EXPECT_EQ(found.ops->first->key.op, "rope");
    EXPECT_EQ(found.ops->first->key.layer, 0);
  }
}

struct GridPair {
  Grid a, b;
  std::string name() const { return a.name() + " and " + b.name(); }
};
/// Grids of dp, tp and pp together, with equal and with other sums over tp.
const GridPair kSixteenBitPairs[] = {{{.tp = 2, .dp = 2}, {.pp = 2, .dp = 2}},
                                     {{.pp = 2, .dp = 2}, {.tp = 2, .pp = 2, .dp = 2}},
                                     {{.tp = 2, .dp = 2}, {.tp = 2, .pp = 2, .chunks = 2}}};

TEST(VerifyGrids, InSixteenBitsEqualRecipesAgree) {
  for (const char* precision : {"bf16", "fp16"}) {
    for (const GridPair& pair : kSixteenBitPairs) {
      SCOPED_TRACE(precision + (": " + pair.name()));
      const VerifyResult found = verify_recipes(verified_config(pair.a, precision), verified_config(pair.b, precision));
      EXPECT_TRUE(found.agree());
      ASSERT_TRUE(found.ops);
      EXPECT_FALSE(found.ops->first);
      EXPECT_GT(found.ops->compared, 300);
    }
  }
}

TEST(VerifyGrids, InSixteenBitsAFaultIsNamed) {
  for (const char* precision : {"bf16", "fp16"}) {
    for (const GridPair& pair : kSixteenBitPairs) {
      SCOPED_TRACE(precision + (": " + pair.name()));
      config::RunConfig one = verified_config(pair.a, precision), other = verified_config(pair.b, precision);
      as_llama(one);
      as_llama(other);
      other.model.rope_theta = 100;  // of an op in the first layer, whose effect on the loss is small
      const VerifyResult rope = verify_recipes(one, other);
      ASSERT_TRUE(rope.ops && rope.ops->first);
      EXPECT_EQ(rope.ops->first->key.op, "rope");
      EXPECT_EQ(rope.ops->first->key.layer, 0);
      other.model.rope_theta = one.model.rope_theta;
      one.optimizer.clip = 1e-3;
      other.optimizer.clip = 2e-3;  // after the passes
      const VerifyResult clip = verify_recipes(one, other);
      ASSERT_FALSE(clip.agree());
      EXPECT_EQ(clip.steps, 1);
      EXPECT_FALSE(clip.ops->first) << "passes agree";
      EXPECT_THAT(clip.first_tensor()->name, StartsWith("optimizer.m."));
    }
  }
}

TEST(VerifyGrids, ALossOfRoutersIsFoundInTheirBackwardPass) {
  const VerifyResult found =
      verify_changed({.dp = 2}, with_experts, [](config::RunConfig& c) { c.moe.aux_loss = 0.02; });
  ASSERT_FALSE(found.agree());
  ASSERT_TRUE(found.ops && found.ops->first);
  EXPECT_EQ(found.ops->first->key.op, "load_loss_backward");
  EXPECT_EQ(found.ops->first->key.layer, 3) << "the first one of the backward pass";
  EXPECT_NEAR(found.ops->first->times, 2, 1e-9);
}

TEST(VerifyGrids, ARuleThatUpdatesRoutersIsNamed) {
  const VerifyResult found =
      verify_changed({.dp = 2}, with_experts, [](config::RunConfig& c) { c.moe.expert_bias_rate = 0.03; });
  ASSERT_FALSE(found.agree());
  EXPECT_EQ(found.first_tensor()->name, "layers.0.moe.router.bias");
  for (const auto& writers : found.last_writers) EXPECT_THAT(writers, Contains("update_experts"));
  ASSERT_TRUE(found.changes);
  EXPECT_NEAR(found.changes->times, 3, 1e-9);
}

/// A run in fp32 widens bands by how far it is from the first grid. One that is no number widens none.
TEST(StepValues, WhatIsNoNumberOnOneGridAloneIsADifference) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const train::VerifyBands bands{};
  const auto differences = [&](double a, double b, double wide) {
    train::StepValues of_a, of_b, of_wide;
    of_a.loss = a;
    of_b.loss = b;
    of_wide.loss = wide;
    std::map<std::string, double> largest;
    return train::compare_values({of_a, of_b, &of_wide}, 1, bands, largest).size();
  };
  EXPECT_EQ(differences(kNan, 1, 1), 1U);
  EXPECT_EQ(differences(1, kNan, 1), 1U);
  EXPECT_EQ(differences(1, 1.5, kNan), 1U);
  EXPECT_EQ(differences(1, 1.5, 1.25), 0U) << "twice as far as that of rounding";
  EXPECT_EQ(differences(kNan, kNan, 1), 0U);
}

}  // namespace
}  // namespace megalith
