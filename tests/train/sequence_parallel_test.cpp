#include <gtest/gtest.h>

#include "tests/train/small_run.h"

// Runs whose tensor-parallel ranks share the token rows outside their regions, against runs where every rank holds all.
// How they agree with one rank: grid_test.cpp and mixed_precision_test.cpp.
namespace megalith {
namespace {

using support::Grid;
using support::RunRecord;

/// Samples of a length that shares cut, in microbatches of two.
config::RunPlan plan_of(Grid grid, nn::SequenceParallel sequence_parallel, const std::string& precision, Index steps) {
  config::RunPlan plan = support::small_plan(grid, precision, steps);
  plan.model.seq_len = 10;
  plan.train.micro_batch = 2;
  plan.sequence_parallel = sequence_parallel == nn::SequenceParallel::on;
  return plan;
}

std::unique_ptr<RunRecord> trained(const config::RunPlan& plan) {
  auto record = std::make_unique<RunRecord>();
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) { support::train_rank(world, plan, *record); });
  return record;
}

bool of_norm(const std::string& name) { return name.find("norm") != std::string::npos; }

/// CPU transports sum in rank order, so what is scattered and gathered has the bits of what all ranks hold. Only the
/// norms' gradients sum their rows in other pieces.
TEST(SequenceParallel, FirstStepHasTheBitsOfWholeRowsButForTheNormsGradients) {
  for (const Grid& grid : {Grid{.tp = 2}, Grid{.tp = 4}, Grid{.tp = 2, .pp = 2, .dp = 2}}) {
    for (const char* precision : {"fp64", "bf16"}) {
      SCOPED_TRACE(grid.name() + " " + precision);
      const auto whole = trained(plan_of(grid, nn::SequenceParallel::off, precision, 1)),
                 shared = trained(plan_of(grid, nn::SequenceParallel::on, precision, 1));
      EXPECT_EQ(shared->losses, whole->losses);
      for (const auto& [name, values] : whole->gradients.tensors()) {
        if (of_norm(name)) {
          EXPECT_LT(support::relative_error(shared->gradients.at(name), values), 1e-6) << name;
        } else {
          EXPECT_EQ(shared->gradients.at(name), values) << name;
        }
      }
    }
  }
}

/// The bits would not show it: the rows that a region's backward pass reads are on their way while the last weight
/// gradient of the region before is computed.
TEST(SequenceParallel, WhatABackwardPassGathersHidesBehindAWeightGradient) {
  const config::RunPlan plan = plan_of({.tp = 2}, nn::SequenceParallel::on, "fp32", 1);
  comm::run_ranks(2, [&](comm::World& world) {
    train::Engine engine(world, plan);
    const std::vector<const char*>& ops = engine.stage().plan_of(0).phases.at(1).ops;
    const auto is = [&](std::size_t i, std::string_view name) { return i < ops.size() && ops[i] == name; };
    Index hidden = 0, awaited_at_once = 0;  // gathers of a gradient and an input, one after the other
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (!is(i, "all_gather") || (i > 0 && is(i - 1, "all_gather"))) continue;
      std::size_t end = i;
      while (is(end, "all_gather")) ++end;
      if (end - i < 2) continue;
      if (is(end, "matmul")) ++hidden;
      if (is(end, "wait")) ++awaited_at_once;
    }
    EXPECT_EQ(hidden, 2 * plan.model.num_layers - 1);
    EXPECT_EQ(awaited_at_once, 1) << "the last layer's, after the head";
  });
}

TEST(SequenceParallel, TrainsTheModelOfWholeRows) {
  for (const Grid& grid : {Grid{.tp = 2}, Grid{.tp = 4}, Grid{.tp = 2, .pp = 2, .dp = 2, .chunks = 2}}) {
    SCOPED_TRACE(grid.name());
    const auto whole = trained(plan_of(grid, nn::SequenceParallel::off, "fp64", 20)),
               shared = trained(plan_of(grid, nn::SequenceParallel::on, "fp64", 20));
    EXPECT_LT(support::relative_error(shared->losses, whole->losses), 1e-12);
    EXPECT_LT(support::relative_error(shared->norms, whole->norms), 1e-12);
    EXPECT_LT(support::relative_error({shared->evaluated}, {whole->evaluated}), 1e-12);
    for (const auto& [name, values] : whole->parameters.tensors())
      EXPECT_LT(support::relative_error(shared->parameters.at(name), values), 1e-10) << name;
  }
}

TEST(SequenceParallel, SubMicrobatchesChangeNoBitsButOfTheNormsGradients) {
  for (const Grid& grid : {Grid{.tp = 2}, Grid{.tp = 2, .pp = 2, .dp = 2}}) {
    SCOPED_TRACE(grid.name());
    config::RunPlan plan = plan_of(grid, nn::SequenceParallel::on, "fp64", 5);
    plan.tp_overlap = config::TpOverlap::none;
    const auto whole = trained(plan);
    plan.tp_overlap = config::TpOverlap::halves;
    EXPECT_EQ(plan.sub_batches(), 2);
    const auto halves = trained(plan);
    EXPECT_EQ(halves->losses[0], whole->losses[0]);
    EXPECT_LT(support::relative_error(halves->losses, whole->losses), 1e-12);
    EXPECT_LT(support::relative_error({halves->evaluated}, {whole->evaluated}), 1e-12);
    for (const auto& [name, values] : whole->gradients.tensors()) {
      if (of_norm(name)) {
        EXPECT_LT(support::relative_error(halves->gradients.at(name), values), 1e-12) << name;
      } else {
        EXPECT_EQ(halves->gradients.at(name), values) << name;
      }
    }
  }
}

std::map<std::string, comm::Counters> counters_of_one_step(const config::RunPlan& plan) {
  std::map<std::string, comm::Counters> counters;
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    engine.step(support::HashedBatches(plan.model.vocab_size), {}, train::Stop::no);
    if (world.rank() != 0) return;
    for (const comm::Group& group : world.groups()) counters[std::string(group.name())] = group.counters();
  });
  return counters;
}

// Per microbatch: rows are gathered for and scattered after two regions a layer, forward and backward, and backward
// gathers the inputs once more. The embedding and the output are half a region each. Once a step: the norms' gradients.
TEST(SequenceParallel, AStepSendsWhatItsRegionsNeed) {
  const config::RunPlan plan = plan_of({.tp = 2}, nn::SequenceParallel::on, "fp64", 1);
  const Index microbatches = plan.train.global_batch / plan.train.micro_batch, layers = plan.model.num_layers;
  const Index bs = plan.train.micro_batch * plan.model.seq_len, bsh = bs * plan.model.hidden_size;
  const comm::Counters tp = counters_of_one_step(plan).at("tp");
  const comm::Counter &gathers = tp[comm::Op::all_gather], &scatters = tp[comm::Op::reduce_scatter],
                      &sums = tp[comm::Op::all_reduce];
  EXPECT_EQ(gathers.calls, microbatches * (6 * layers + 3));
  EXPECT_EQ(gathers.elements, gathers.calls * bsh / 2);
  EXPECT_EQ(scatters.calls, microbatches * (4 * layers + 2));
  EXPECT_EQ(scatters.elements, scatters.calls * bsh);
  EXPECT_EQ(sums.calls, microbatches * 2 + 1);
  const Index norm_elements = 128;  // H = 20, with the gap to the next parameter
  EXPECT_EQ(sums.elements, microbatches * 3 * bs + (4 * layers + 2) * norm_elements);
}

TEST(SequenceParallel, StagesSendTheirShareOfTheRows) {
  const auto sent = [](nn::SequenceParallel sequence_parallel) {
    return counters_of_one_step(plan_of({.tp = 2, .pp = 2}, sequence_parallel, "fp64", 1)).at("pp")[comm::Op::send];
  };
  const comm::Counter whole = sent(nn::SequenceParallel::off), shared = sent(nn::SequenceParallel::on);
  EXPECT_EQ(shared.calls, whole.calls);
  EXPECT_EQ(shared.elements * 2, whole.elements);
}

TEST(SequenceParallel, OfOneRankIsWithoutEffect) {
  const auto plain = trained(plan_of({}, nn::SequenceParallel::off, "fp64", 3)),
             asked = trained(plan_of({}, nn::SequenceParallel::on, "fp64", 3));
  EXPECT_EQ(asked->losses, plain->losses);
  EXPECT_EQ(asked->parameters.tensors(), plain->parameters.tensors());
}

TEST(SequenceParallel, PlansLessMemoryForActivations) {
  const auto planned = [](nn::SequenceParallel sequence_parallel, int tp) {
    const std::unique_ptr<comm::World> world = comm::dry_world(0, tp);
    const config::RunPlan plan = plan_of({.tp = tp}, sequence_parallel, "fp32", 1);
    return train::Engine(*world, plan).planned_bytes();
  };
  for (const int tp : {2, 4}) {
    BytesByOwner whole = planned(nn::SequenceParallel::off, tp), shared = planned(nn::SequenceParallel::on, tp);
    const Index rows = 2 * 10 * 20 * size_of(DType::f32), layers = 8;
    // What the norms read and gave, of both regions: 4 tensors [T, H] a layer of which tp - 1 shares are elsewhere.
    EXPECT_LE(shared.at("activations"), whole.at("activations") - layers * 4 * rows * (tp - 1) / tp);
    EXPECT_EQ(shared.at("parameters"), whole.at("parameters"));
  }
}

}  // namespace
}  // namespace megalith
