#include "megalith/ops/step_end.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

/// Decides steps one after the other, as a run does.
class Steps {
 public:
  explicit Steps(const StepRules& rules) : rules_(rules) {
    if (rules.scaling.initial > 0) state_.loss_scale = rules.scaling.initial;
  }
  StepVerdict step(double scaled_squares, std::uint64_t non_finite = 0, std::uint64_t calls = 0) {
    return decide(rules_, {.squares = scaled_squares, .loss_sums = {1}},
                  {.non_finite = non_finite, .calls = calls, .loss_counts = {targets_}}, state_, outcome_);
  }
  std::uint64_t targets_ = 0;
  StepRules rules_;
  OptimizerState state_;
  StepOutcome outcome_;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Event list: ok ok bad ok ok bad bad ok, from 65536, doubling after two clean steps.
TEST(StepEnd, LossScaleFollowsTheEvents) {
  Steps steps({.scaling = {.initial = 65536, .growth_interval = 2}});
  const bool ok[] = {true, true, false, true, true, false, false, true};
  const double want[] = {65536, 131072, 65536, 65536, 131072, 65536, 32768, 32768};
  std::int64_t updates = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    const StepVerdict verdict = steps.step(ok[i] ? 1.0 : kInfinity, ok[i] ? 0 : 1);
    EXPECT_EQ(verdict.apply, ok[i] ? 1 : 0) << i;
    EXPECT_EQ(verdict.update, updates) << i;
    updates += ok[i] ? 1 : 0;
    EXPECT_EQ(steps.state_.loss_scale, want[i]) << i;
    EXPECT_EQ(steps.state_.updates, updates) << i;
  }
}

TEST(StepEnd, LossScaleGrowsBehindMoreCleanStepsThanAreAskedFor) {
  Steps steps({.scaling = {.initial = 4, .growth_interval = 3}});
  steps.state_.clean_steps = 5;  // of a checkpoint of a run that asked for more
  steps.step(1);
  EXPECT_EQ(steps.state_.loss_scale, 8);
  EXPECT_EQ(steps.state_.clean_steps, 0);
}

// Nothing of such a step counts, not even that its numbers were finite, nor of steps after it until the host clears it.
TEST(StepEnd, AStepWithoutRowsForExpertsIsHeldUntilItIsCleared) {
  Steps steps({.scaling = {.initial = 8, .growth_interval = 1}});
  const auto step = [&](std::uint64_t without_rows, double squares = 1, std::uint64_t calls = 0) {
    const std::uint64_t non_finite = std::isfinite(squares) ? 0 : 1;
    return decide(steps.rules_, {.squares = squares, .loss_sums = {1}},
                  {.non_finite = non_finite, .calls = calls, .without_rows = without_rows}, steps.state_,
                  steps.outcome_);
  };
  for (const double squares : {1.0, kInfinity}) {
    steps.state_ = {.updates = 3, .loss_scale = 8, .clean_steps = 0};
    EXPECT_EQ(step(5, squares).apply, 0);
    EXPECT_EQ(steps.outcome_.halted, kHeldForRows);
    EXPECT_EQ(steps.outcome_.applied, 0);
    EXPECT_EQ(step(0).apply, 0) << "the step in flight";
    EXPECT_EQ(steps.outcome_.halted, kHeldForRows);
    EXPECT_EQ(steps.state_.updates, 3);
    EXPECT_EQ(steps.state_.loss_scale, 8);
    EXPECT_EQ(steps.state_.clean_steps, 0);
    steps.state_.halted = 0;
    const StepVerdict again = step(0);
    EXPECT_EQ(again.apply, 1);
    EXPECT_EQ(again.update, 3);
    EXPECT_EQ(steps.outcome_.halted, 0);
  }
  step(5, 1, 1);
  EXPECT_EQ(steps.state_.halted, 1) << "ranks that disagree end the run";
}

TEST(StepEnd, AStepThatDropsPairsCountsThemAndGoesOn) {
  Steps steps({.without_rows = WithoutRows::counts});
  const StepVerdict verdict = decide(steps.rules_, {.squares = 1}, {.without_rows = 5}, steps.state_, steps.outcome_);
  EXPECT_EQ(verdict.apply, 1);
  EXPECT_EQ(steps.outcome_.counts.without_rows, 5U);
  EXPECT_EQ(steps.state_.halted, 0);
}

TEST(StepEnd, AStepThatIsNotFiniteStopsOrIsSkipped) {
  Steps stops({});
  EXPECT_EQ(stops.step(kInfinity, 1).apply, 0);
  EXPECT_EQ(stops.state_.halted, 1);
  EXPECT_EQ(stops.step(1).apply, 0) << "nothing changes any more";
  Steps skips({.non_finite = NonFinite::skip});
  EXPECT_EQ(skips.step(kInfinity, 1).apply, 0);
  EXPECT_EQ(skips.state_.halted, 0);
  EXPECT_EQ(skips.state_.updates, 0);
  EXPECT_EQ(skips.state_.loss_scale, 1);
  EXPECT_EQ(skips.outcome_.skipped_steps, 1);
  EXPECT_EQ(skips.step(kInfinity, 1).apply, 0);
  EXPECT_EQ(skips.outcome_.skipped_steps, 2);
  EXPECT_EQ(skips.step(1).apply, 1);
  EXPECT_EQ(skips.outcome_.skipped_steps, 0) << "in a row";
  EXPECT_EQ(skips.step(kInfinity, 1, 1).apply, 0);
  EXPECT_EQ(skips.state_.halted, 1) << "ranks that disagree end the run";
}

TEST(StepEnd, OnlyOverflowsAtTheSmallestScaleCountAsSkipped) {
  Steps steps({.scaling = {.initial = 4, .smallest = 1}});
  const std::int64_t want[] = {0, 0, 1, 2};  // at the scales 4 2 1 1
  for (const std::int64_t skipped : want) {
    steps.step(kInfinity, 1);
    EXPECT_EQ(steps.outcome_.skipped_steps, skipped);
  }
}

// Norms 2 4 6 | 12 and 12.1: the mean after three steps is 4.
TEST(StepEnd, ANormFarAboveItsMeanIsASpike) {
  for (const OnSpike on_spike : {OnSpike::report, OnSpike::skip}) {
    Steps steps({.spikes = {.norm = 3, .window = 3, .on_spike = on_spike}});
    const auto norm = [&](double value) { return steps.step(value * value).apply; };
    for (const double early : {2.0, 4.0, 6.0}) EXPECT_EQ(norm(early), 1) << "no spike within the window";
    EXPECT_DOUBLE_EQ(steps.state_.means.norm, 4);
    EXPECT_EQ(norm(12), 1) << "not above three times the mean";
    EXPECT_EQ(steps.outcome_.spikes, 0);
    EXPECT_DOUBLE_EQ(steps.state_.means.norm, 4 + 8.0 / 3);
    steps.state_.means.norm = 4;
    EXPECT_EQ(norm(12.1), on_spike == OnSpike::report ? 1 : 0);
    EXPECT_EQ(steps.outcome_.spikes, kNormSpike);
    EXPECT_EQ(steps.outcome_.skipped_steps, on_spike == OnSpike::report ? 0 : 1);
    EXPECT_DOUBLE_EQ(steps.outcome_.means.norm, 4) << "the mean before the step";
    EXPECT_DOUBLE_EQ(steps.state_.means.norm, 4 + 8.0 / 3) << "as if it were 12";
    EXPECT_EQ(norm(6), 1);
    EXPECT_EQ(steps.outcome_.spikes, 0);
    EXPECT_EQ(steps.state_.updates, on_spike == OnSpike::report ? 6 : 5);
    EXPECT_EQ(steps.state_.halted, 0);
  }
}

TEST(StepEnd, AStepThatIsNotFiniteMovesNoMean) {
  Steps steps({.non_finite = NonFinite::skip, .spikes = {.loss = 2, .window = 1}});
  steps.targets_ = 1;
  steps.step(1);
  EXPECT_EQ(steps.state_.means.steps, 1);
  steps.step(kInfinity, 1);
  EXPECT_EQ(steps.state_.means.steps, 1);
  EXPECT_DOUBLE_EQ(steps.state_.means.loss, 1);
  EXPECT_EQ(steps.outcome_.spikes, 0);
}

TEST(StepEnd, TheWindowEndsBeforeTheFirstSpike) {
  Steps steps({.spikes = {.norm = 3, .window = 3, .on_spike = OnSpike::skip}});
  for (const double squares : {1.0, 1.0, 1e4}) EXPECT_EQ(steps.step(squares).apply, 1);
  EXPECT_DOUBLE_EQ(steps.state_.means.norm, 34);
  EXPECT_EQ(steps.step(102.5 * 102.5).apply, 0);
}

// Batches without targets, say: a mean of 0 would stay 0, and each step that has one would be skipped.
TEST(StepEnd, NothingIsASpikeAboveAMeanOfZero) {
  Steps steps({.spikes = {.norm = 2, .window = 2, .on_spike = OnSpike::skip}});
  for (int i = 0; i < 3; ++i) steps.step(0);
  EXPECT_EQ(steps.step(4).apply, 1);
  EXPECT_EQ(steps.outcome_.spikes, 0);
  EXPECT_DOUBLE_EQ(steps.state_.means.norm, 1);
}

// In fp16 a spike is no overflow: the scale and its count of clean steps go on.
TEST(StepEnd, ASkippedSpikeIsACleanStepOfLossScaling) {
  Steps steps(
      {.scaling = {.initial = 4, .growth_interval = 3}, .spikes = {.norm = 2, .window = 2, .on_spike = OnSpike::skip}});
  for (int i = 0; i < 2; ++i) steps.step(1);
  EXPECT_EQ(steps.step(100).apply, 0);
  EXPECT_EQ(steps.outcome_.spikes, kNormSpike);
  EXPECT_EQ(steps.outcome_.skipped_steps, 1);
  EXPECT_EQ(steps.state_.updates, 2);
  EXPECT_EQ(steps.state_.loss_scale, 8);
}

TEST(StepEnd, WithoutSpikeRulesNoMeanIsKept) {
  Steps steps({});
  steps.state_.means = {.steps = 3, .loss = 2, .norm = 1};  // of a run that had rules
  steps.step(4);
  EXPECT_EQ(steps.state_.means.steps, 0);
  EXPECT_EQ(steps.state_.means.norm, 0);
}

TEST(StepEnd, LossScaleStopsAtTheSmallest) {
  Steps steps({.scaling = {.initial = 4, .smallest = 3}});
  steps.step(kInfinity, 1);
  EXPECT_EQ(steps.state_.loss_scale, 3);
  steps.step(kInfinity, 1);
  EXPECT_EQ(steps.state_.loss_scale, 3);
}

TEST(StepEnd, FactorUndoesTheScaleAndClips) {
  Steps steps({.scaling = {.initial = 1024}, .clip = 1});
  EXPECT_DOUBLE_EQ(steps.step(0.25 * 1024 * 1024).factor, 1.0 / 1024);
  EXPECT_DOUBLE_EQ(steps.outcome_.grad_norm, 0.5);
  EXPECT_DOUBLE_EQ(steps.step(16.0 * 1024 * 1024).factor, 1 / (4 + 1e-6) / 1024);
}

TEST(StepEnd, GradientsBecomeThoseOfTheMeanOverTheTargets) {
  Steps steps({.scaling = {.initial = 2}, .clip = 1, .divided_by = 12});
  steps.targets_ = 3;
  EXPECT_DOUBLE_EQ(steps.step(4.0 * 0.01).factor, 12.0 / 3 / 2);
  EXPECT_DOUBLE_EQ(steps.outcome_.grad_norm, 0.4);
  EXPECT_DOUBLE_EQ(steps.step(4.0 * 4).factor, 1 / (8 + 1e-6) / 2 * 4) << "the norm of the mean is clipped";
  steps.targets_ = 12;
  EXPECT_EQ(steps.step(4.0 * 0.01).factor, 0.5) << "nothing is changed where all tokens have a target";
  steps.targets_ = 0;
  EXPECT_EQ(steps.step(0).factor, 0);
}

TEST(StepEnd, WithoutScalingABadStepEndsAllUpdates) {
  Steps steps({});
  EXPECT_EQ(steps.step(1).apply, 1);
  EXPECT_EQ(steps.step(std::nan(""), 1).apply, 0);
  EXPECT_EQ(steps.step(1).apply, 0) << "nothing may change after a step that failed";
  EXPECT_EQ(steps.state_.updates, 1);
}

TEST(StepEnd, DisagreementEndsAllUpdatesAlsoWithScaling) {
  Steps steps({.scaling = {.initial = 8}});
  EXPECT_EQ(steps.step(1, 0, 77).apply, 0);
  EXPECT_EQ(steps.step(1).apply, 0);
  EXPECT_EQ(steps.state_.loss_scale, 8);
}

TEST(StepEnd, TheLossIsTheWeightedSumOfTheMeans) {
  const StepRules one, two{.losses = 2, .loss_weights = {1, 0.5}};
  const StepTotals totals{.loss_sums = {6, 20, 77}};
  const StepCounts counts{.loss_counts = {4, 5, 7}};
  EXPECT_EQ(one.mean_loss(totals, counts), 1.5);
  EXPECT_EQ(two.mean_loss(totals, counts), 1.5 + 0.5 * 4);
  EXPECT_EQ(two.mean_loss(totals, {.loss_counts = {0, 5}}), 2) << "a loss without terms adds nothing";
  EXPECT_EQ(one.mean_loss(totals, {}), 0);
}

// The vote of a step carries the terms of the next one's first loss, also that of a step which is skipped.
TEST(StepEnd, TheFirstLossIsDividedByTheTermsThatTheStepBeforeHasSummed) {
  Steps steps({.scaling = {.initial = 8}});
  const auto step = [&](std::uint64_t next_terms, std::uint64_t non_finite) {
    decide(steps.rules_, {.squares = 1}, {.non_finite = non_finite, .next_terms = next_terms}, steps.state_,
           steps.outcome_);
  };
  EXPECT_EQ(step_scale(steps.state_, ScaledLoss::first), 8) << "unknown: the host has divided";
  step(5, 0);
  EXPECT_EQ(step_scale(steps.state_, ScaledLoss::first), 8.0 / 5);
  EXPECT_EQ(step_scale(steps.state_, ScaledLoss::other), 8);
  step(3, 1);
  EXPECT_EQ(step_scale(steps.state_, ScaledLoss::first), 4.0 / 3) << "skipped";
  step(0, 0);
  EXPECT_EQ(step_scale(steps.state_, ScaledLoss::first), 4);
}

TEST(StepEnd, TermsCountReplicasOnce) {
  Exec ex;
  const auto numbers = [&](std::initializer_list<double> values) {
    const Tensor tensor = ex.tensor({static_cast<Index>(values.size())}, DType::f64);
    std::ranges::copy(values, tensor.data<double>());
    return tensor;
  };
  const Tensor totals = ex.tensor({1 + kMaxLosses}, DType::f64),
               counts = ex.tensor({summed_counts(kMaxLosses)}, DType::u64);
  const Tensor outcome = ex.tensor({Index{sizeof(StepOutcome)}}, DType::u8);
  std::ranges::fill(counts.span<std::uint64_t>(), 5);
  const double *squares = totals.data<double>(), *loss_sums = squares + 1;
  const std::uint64_t *non_finite = counts.data<std::uint64_t>(), *calls = non_finite + 1;
  StepTerms terms{.sum_squares = numbers({9, 4}),
                  .loss_sums = numbers({2, 3}),
                  .totals = totals,
                  .counts = counts,
                  .outcome = outcome};
  step_terms(ex, terms);
  EXPECT_THAT(std::span(loss_sums, kMaxLosses), testing::ElementsAre(2, 3, 0, 0));
  EXPECT_EQ(*squares, 9);
  EXPECT_EQ(*calls, 5u) << "the host's own words stay";
  EXPECT_EQ(*non_finite, 0u);
  terms.sum_squares = numbers({9, std::nan("")});
  step_terms(ex, terms);
  EXPECT_EQ(*squares, 9) << "a replica's gradients add nothing";
  EXPECT_EQ(*non_finite, 1u) << "and are looked at";
  terms.sum_squares = numbers({9, 4, 16, 2});  // of two reduction groups
  step_terms(ex, terms);
  EXPECT_EQ(*squares, 25);
  EXPECT_EQ(*non_finite, 0u);
  terms.sum_squares = numbers({9, 4, 16, std::nan("")});
  step_terms(ex, terms);
  EXPECT_EQ(*squares, 25);
  EXPECT_EQ(*non_finite, 1u);
  terms.loss = LossShare::replica;
  step_terms(ex, terms);
  EXPECT_THAT(std::span(loss_sums, kMaxLosses), testing::Each(0)) << "a replica's losses add nothing";
  terms.loss_sums = numbers({2, kInfinity});
  terms.sum_squares = numbers({9, 4});
  step_terms(ex, terms);
  EXPECT_EQ(*non_finite, 1u) << "every loss is checked";
  EXPECT_EQ(calls[2], 5u) << "without experts the host's word stays";
  terms.overflow = ex.tensor({2}, DType::i64);
  terms.overflow.data<std::int64_t>()[0] = 11, terms.overflow.data<std::int64_t>()[1] = 99;
  step_terms(ex, terms);
  EXPECT_EQ(calls[2], 11u) << "pairs without rows; the most rows are no term of a sum";
  EXPECT_EQ(calls[1], 5u);
}

}  // namespace
}  // namespace megalith::ops
