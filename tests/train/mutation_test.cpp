// Collective calls that go wrong on one rank: every one is caught before any rank's optimizer moves, and the rank that
// did it is named.
#include "tests/support/mutation.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/train/graph_ways.h"

namespace megalith {
namespace {

using comm::Mutation;

config::RunPlan tiny_plan(const support::Grid& grid) {
  config::RunPlan plan = support::small_plan(grid, "fp32", 2);
  plan.model.num_layers = 4;
  plan.train.global_batch = 2 * plan.train.micro_batch * grid.dp;
  return plan;
}

struct Outcome {
  std::string error;     ///< of the run
  bool applied = false;  ///< the mutation
  Index calls = 0;       ///< of the culprit in the step
  bool parameters_moved = false;
};

/// The values that the rank's optimizer updates.
std::vector<float> own_values(const ParamBuffer& params) {
  std::vector<float> values;
  for (const OwnRange& range : params.own_ranges()) {
    const std::span<float> own = range.of_whole(params.values()).span<float>();
    values.insert(values.end(), own.begin(), own.end());
  }
  return values;
}

/// Clean steps, then one in which a call of the culprit goes wrong.
Outcome run_mutated(const config::RunPlan& plan, int culprit, const Mutation& mutation, Index clean_steps = 1) {
  Outcome outcome;
  std::atomic<bool> moved{false};
  try {
    comm::run_ranks(plan.grid.world_size,
                    [&](comm::World& world) {
                      train::Engine engine(world, plan);
                      engine.allocate();
                      const support::HashedBatches source(plan.model.vocab_size);
                      for (Index step = 0; step < clean_steps; ++step)
                        engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
                      const std::vector<float> before = own_values(engine.stage().params().dense());
                      comm::Mutator* mutator = world.rank() == culprit ? &comm::mutate(world, mutation) : nullptr;
                      const auto note = [&] {
                        if (mutator != nullptr) outcome.applied = mutator->applied(), outcome.calls = mutator->calls();
                        if (own_values(engine.stage().params().dense()) != before) moved = true;
                      };
                      try {
                        engine.step(source, {clean_steps, clean_steps * plan.train.global_batch}, train::Stop::no);
                      } catch (...) {
                        note();
                        throw;
                      }
                      note();
                    },
                    {.timeout_s = 20});
  } catch (const Error& error) {
    outcome.error = error.code() == ExitCode::collective ? error.what() : str("another class: ", error.what());
  }
  outcome.parameters_moved = moved;
  return outcome;
}

/// Every call of the step after `clean_steps` goes wrong in a run of its own.
void expect_caught(const config::RunPlan& plan, int culprit, Mutation::Kind kind, Index clean_steps = 1) {
  const Index calls = run_mutated(plan, culprit, {kind, Index{1} << 40}, clean_steps).calls;
  ASSERT_GT(calls, 20);
  int caught = 0;
  for (Index k = 0; k < calls; ++k) {
    SCOPED_TRACE(str("call ", k, " of ", calls));
    const Outcome outcome = run_mutated(plan, culprit, {kind, k}, clean_steps);
    if (!outcome.applied) {
      EXPECT_EQ(outcome.error, "");
      continue;
    }
    EXPECT_EQ(outcome.error.substr(0, 8), str("rank ", culprit, ": ")) << outcome.error;
    EXPECT_NE(outcome.error.find("a step must make the same calls every time"), std::string::npos) << outcome.error;
    // A vote that is called again comes after the vote: the others have moved, rightly, and the job ends.
    const bool after_the_vote = kind == Mutation::Kind::twice && k + 1 == calls;
    EXPECT_EQ(outcome.parameters_moved, after_the_vote);
    ++caught;
  }
  EXPECT_GT(caught, 5);
}

class CollectiveMutation : public ::testing::TestWithParam<std::tuple<support::Grid, Mutation::Kind, int>> {};

TEST_P(CollectiveMutation, IsCaughtBeforeTheOptimizerMovesAndTheCulpritNamed) {
  const auto& [grid, kind, culprit] = GetParam();
  expect_caught(tiny_plan(grid), culprit, kind);
}

std::string name_of(Mutation::Kind kind) {
  constexpr const char* kNames[] = {"skip", "twice", "count", "dtype", "reduce", "swap"};
  return kNames[static_cast<int>(kind)];
}

std::string mutation_name(const ::testing::TestParamInfo<std::tuple<support::Grid, Mutation::Kind, int>>& suite) {
  return std::get<0>(suite.param).name() + "_" + name_of(std::get<1>(suite.param)) + "_rank" +
         std::to_string(std::get<2>(suite.param));
}

constexpr auto kKinds = {Mutation::Kind::skip,  Mutation::Kind::twice,  Mutation::Kind::count,
                         Mutation::Kind::dtype, Mutation::Kind::reduce, Mutation::Kind::swap};

constexpr support::Grid kGrids[] = {
    {.tp = 2, .pp = 2}, {.tp = 2, .dp = 2}, {.tp = 2, .dp = 2, .sharding = Sharding::optimizer}};

INSTANTIATE_TEST_SUITE_P(Grids, CollectiveMutation,
                         ::testing::Combine(::testing::ValuesIn(kGrids), ::testing::ValuesIn(kKinds),
                                            ::testing::Range(0, 4)),
                         mutation_name);

// In steps that come before graphs are captured, and in those that launch them (on the CPU the calls in a graph are
// made and watched, too).
class CollectiveMutationWithGraphs
    : public ::testing::TestWithParam<std::tuple<support::GraphWay, Mutation::Kind, bool>> {};

TEST_P(CollectiveMutationWithGraphs, IsCaughtBeforeTheOptimizerMovesAndTheCulpritNamed) {
  const auto& [way, kind, launches] = GetParam();
  const config::RunPlan plan = support::with_graphs(tiny_plan({.tp = 2, .pp = 2}), way, launches ? 1 : 3);
  expect_caught(plan, 3, kind, launches ? 3 : 1);
}

INSTANTIATE_TEST_SUITE_P(Ways, CollectiveMutationWithGraphs,
                         ::testing::Combine(::testing::ValuesIn(support::kGraphWays), ::testing::ValuesIn(kKinds),
                                            ::testing::Bool()),
                         [](const auto& suite) {
                           return std::string(std::get<0>(suite.param).name) + "_" + name_of(std::get<1>(suite.param)) +
                                  (std::get<2>(suite.param) ? "_launched" : "_warming_up");
                         });

TEST(CollectivePattern, RaisesNoFalseAlarmInAThousandSteps) {
  const support::Grid grid{.tp = 2, .pp = 2};
  const config::RunPlan plan = tiny_plan(grid);
  comm::run_ranks(grid.ranks(), [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const support::HashedBatches source(plan.model.vocab_size);
    for (Index step = 0; step < 1000; ++step) {
      engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
      if (step % 100 == 7) engine.evaluate(source, plan.train.global_batch);
    }
  });
}

}  // namespace
}  // namespace megalith
