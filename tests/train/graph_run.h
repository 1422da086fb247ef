#pragma once
#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/train/small_run.h"

namespace megalith::support {

/// The grids whose steps from graphs must have the bits of eager ones.
inline std::vector<Grid> graph_grids() {
  std::vector<Grid> grids = all_grids();
  grids.push_back({.pp = 4, .chunks = 2});
  return grids;
}

/// Pipelines whose stages have unequal numbers of layers, or none, and one with a single microbatch a step.
inline std::vector<std::pair<std::string, config::RunPlan>> uneven_plans(const std::string& precision, Index steps) {
  const auto cut = [&](const Grid& grid, std::vector<Index> layers) {
    config::RunPlan plan = small_plan(grid, precision, steps);
    plan.stage_layers = std::move(layers);
    return plan;
  };
  config::RunPlan single = small_plan({.pp = 2}, precision, steps);
  single.train.global_batch = single.train.micro_batch;
  return {{"0, 3, 4, 1", cut({.pp = 4}, {0, 3, 4, 1})},
          {"3, 0, 5, 0 in two chunks", cut({.pp = 2, .chunks = 2}, {3, 0, 5, 0})},
          {"one microbatch", std::move(single)}};
}

/// A(r): chunks of microbatches in flight on a stage (P2, P9 of the specification, computed here independently).
inline int chunks_in_flight(int pp, int chunks, int stage, int microbatches) {
  const int stages_left = pp - stage - 1;
  const int warmup = chunks == 1 ? stages_left : 2 * stages_left + (chunks - 1) * pp;
  return std::min(warmup + 1, microbatches * chunks);
}

/// What a run with evaluations in its middle leaves behind.
struct GraphRun {
  RunRecord record;               ///< gradients: of the last step
  std::vector<double> evaluated;  ///< every 10 steps
};

/// Asked at the end of a rank's run, with the batches that were evaluated.
using AtTheEnd = std::function<void(train::Engine&, Index)>;

/// Evaluates every 10 steps, each time other samples.
inline void train_rank(comm::World& world, const config::RunPlan& plan, GraphRun& run, const AtTheEnd& at_the_end) {
  train::Engine engine(world, plan);
  engine.allocate();
  const HashedBatches source(plan.model.vocab_size);
  train::Progress progress;
  Index evaluated_batches = 0;
  for (Index step = 0; step < plan.train.steps; ++step) {
    const train::StepReport result = engine.step(source, progress, train::Stop::no);
    progress = {step + 1, progress.samples + plan.train.global_batch};
    const bool evaluates = step % 10 == 9;
    const Index batches = evaluates ? 2 + step / 10 : 0;
    const double loss = evaluates ? engine.evaluate(source, batches * plan.train.global_batch) : 0;
    evaluated_batches += batches;
    if (world.rank() != 0) continue;
    run.record.losses.push_back(result.loss);
    run.record.norms.push_back(result.grad_norm);
    if (evaluates) run.evaluated.push_back(loss);
  }
  at_the_end(engine, evaluated_batches);
  put_params(run.record.gradients, engine.stage(), true);
  put_params(run.record.parameters, engine.stage(), false);
}

inline std::unique_ptr<GraphRun> run_of(const config::RunPlan& plan, const AtTheEnd& at_the_end) {
  auto run = std::make_unique<GraphRun>();
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) { train_rank(world, plan, *run, at_the_end); });
  return run;
}

/// Twelve steps, each with an evaluation. Where graphs are forgotten: in the middle.
inline std::unique_ptr<GraphRun> run_forgetting(const config::RunPlan& plan, bool forgets) {
  auto run = std::make_unique<GraphRun>();
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const HashedBatches source(plan.model.vocab_size);
    const auto num_graphs = [&] { return engine.captured_graphs().stats.graphs; };
    for (Index step = 0; step < 12; ++step) {
      if (forgets && step == 6) {
        EXPECT_GT(num_graphs(), 0);
        engine.forget_graphs();
        EXPECT_EQ(num_graphs(), 0);
      }
      const double loss = engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no).loss,
                   evaluated = engine.evaluate(source, plan.train.global_batch);
      if (forgets && step == 6) {
        EXPECT_EQ(num_graphs(), 0) << "the warm-up is eager";
      }
      if (world.rank() != 0) continue;
      run->record.losses.push_back(loss);
      run->evaluated.push_back(evaluated);
    }
    EXPECT_EQ(num_graphs() > 0, plan.graphs.mode != capture::GraphMode::none);
    put_params(run->record.parameters, engine.stage(), false);
  });
  return run;
}

/// By bits: the norm of a step that overflowed is NaN.
inline void expect_same_numbers(const std::vector<double>& got, const std::vector<double>& want) {
  const auto bits = [](const std::vector<double>& numbers) {
    std::vector<std::uint64_t> all;
    for (const double number : numbers) all.push_back(std::bit_cast<std::uint64_t>(number));
    return all;
  };
  EXPECT_TRUE(bits(got) == bits(want)) << ::testing::PrintToString(got) << ", should be\n"
                                       << ::testing::PrintToString(want);
}
inline void expect_same_training(const GraphRun& got, const GraphRun& want) {
  expect_same_numbers(got.record.losses, want.record.losses);
  expect_same_numbers(got.record.norms, want.record.norms);
  expect_same_numbers(got.evaluated, want.evaluated);
  EXPECT_EQ(got.record.parameters.tensors(), want.record.parameters.tensors());
}
/// Not where the optimizer is sharded: ranks have other remains of the gradients that are not theirs.
inline void expect_same_gradients(const GraphRun& got, const GraphRun& want) {
  EXPECT_EQ(got.record.gradients.tensors(), want.record.gradients.tensors());
}
inline void expect_same(const GraphRun& got, const GraphRun& want) {
  expect_same_training(got, want);
  expect_same_gradients(got, want);
}

}  // namespace megalith::support
