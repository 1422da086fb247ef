#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/agreeing_runs.h"
#include "tests/train/graph_ways.h"

// The loss is the mean over the targets of the global batch that have one, wherever they lie.
namespace megalith {
namespace {

using support::expect_fp64_agrees;
using support::Grid;
using support::relative_error;
using support::RunRecord;

/// Hashed batches of which few targets count: of every third sample all, of the others none to a few.
class SparseTargets final : public model::BatchSource {
 public:
  explicit SparseTargets(Index vocab) : batches_(vocab) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    batches_.fill(first_sample, count, batch);
    const std::size_t length = batch.targets.size() / static_cast<std::size_t>(count);
    for (std::size_t i = 0; i < batch.targets.size(); ++i) {
      if (!counts(static_cast<std::size_t>(first_sample) + i / length, i % length)) batch.targets[i] = model::kNoTarget;
    }
  }
  static bool counts(std::size_t sample, std::size_t position) { return sample % 3 == 0 || position < sample % 5 / 2; }

 private:
  support::HashedBatches batches_;
};

Index count_in(Index first_sample, Index samples, Index seq_len) {
  Index count = 0;
  for (Index sample = first_sample; sample < first_sample + samples; ++sample) {
    for (Index position = 0; position < seq_len; ++position)
      count += SparseTargets::counts(static_cast<std::size_t>(sample), static_cast<std::size_t>(position)) ? 1 : 0;
  }
  return count;
}

void run(const config::RunPlan& plan, RunRecord& record) {
  const SparseTargets source(plan.model.vocab_size);
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) { support::train_rank(world, plan, source, record); });
}

const RunRecord& counted_on_one_rank() {
  static const std::unique_ptr<RunRecord> record = [] {
    auto made = std::make_unique<RunRecord>();
    run(support::small_plan({}, "fp64"), *made);
    return made;
  }();
  return *record;
}

class CountedTargets : public ::testing::TestWithParam<Grid> {};

TEST_P(CountedTargets, OfAnyGridGiveTheResultsOfOneRank) {
  RunRecord got;
  run(support::small_plan(GetParam(), "fp64"), got);
  expect_fp64_agrees(got, counted_on_one_rank());
}

INSTANTIATE_TEST_SUITE_P(All, CountedTargets, ::testing::ValuesIn(support::all_and_sharded_grids()),
                         [](const auto& test) { return test.param.name(); });

TEST(CountedTargets, AreCountedInStepsFromGraphs) {
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    RunRecord got;
    run(support::with_graphs(support::small_plan({.tp = 2, .pp = 2, .dp = 2}, "fp64"), way, 2), got);
    expect_fp64_agrees(got, counted_on_one_rank());
  }
}

TEST(CountedTargets, AreReported) {
  const config::RunPlan plan = support::small_plan({.tp = 2, .dp = 2}, "fp64", 2);
  const SparseTargets source(plan.model.vocab_size);
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    for (Index step = 0; step < 2; ++step) {
      const Index first = step * plan.train.global_batch;
      EXPECT_EQ(engine.step(source, {step, first}, train::Stop::no).losses[0].count,
                count_in(first, plan.train.global_batch, plan.model.seq_len));
    }
  });
}

/// A batch whose first sample alone counts, and the same with nothing else in it.
class FirstSampleOnly final : public model::BatchSource {
 public:
  explicit FirstSampleOnly(Index vocab) : batches_(vocab) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    batches_.fill(first_sample, count, batch);
    if (first_sample > 0) std::ranges::fill(batch.targets, model::kNoTarget);
  }

 private:
  support::HashedBatches batches_;
};

TEST(CountedTargets, GiveTheStepOfABatchWithoutTheOthers) {
  const auto first_step = [](Index global_batch, RunRecord& record) {
    config::RunPlan plan = support::small_plan({}, "fp64", 1);
    plan.train.global_batch = global_batch;
    const FirstSampleOnly source(plan.model.vocab_size);
    comm::run_ranks(1, [&](comm::World& world) { support::train_rank(world, plan, source, record); });
  };
  RunRecord want, got;
  first_step(1, want);
  first_step(8, got);
  EXPECT_LT(relative_error(got.losses, want.losses), 1e-12);
  EXPECT_LT(relative_error(got.norms, want.norms), 1e-12);
  for (const auto& [name, values] : want.parameters.tensors())
    EXPECT_LT(relative_error(got.parameters.at(name), values), 1e-10) << name;
}

TEST(CountedTargets, OfNoneMakeAStepWithoutAGradient) {
  class None final : public model::BatchSource {
   public:
    void fill(Index, Index, const model::Batch& batch) const override {
      std::ranges::fill(batch.tokens, 1);
      std::ranges::fill(batch.targets, model::kNoTarget);
    }
  };
  const config::RunPlan plan = support::small_plan({.pp = 2}, "fp64", 1);
  comm::run_ranks(2, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const train::StepReport report = engine.step(None(), {}, train::Stop::no);
    EXPECT_EQ(report.losses[0].count, 0);
    EXPECT_EQ(report.loss, 0);
    EXPECT_EQ(report.grad_norm, 0);
    EXPECT_FALSE(report.skipped);
    EXPECT_EQ(engine.evaluate(None(), 8), 0);
  });
}

}  // namespace
}  // namespace megalith
