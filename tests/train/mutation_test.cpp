// Collective calls that go wrong on one rank: every one is caught before any rank's optimizer moves, and the rank that
// did it is named.
#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/train/small_run.h"

namespace megalith {
namespace {

using comm::Mutation;

config::RunPlan tiny_plan(const testing::Grid& grid) {
  config::RunPlan plan = testing::small_plan(grid, "fp32", 2);
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

/// A clean step, then one in which a call of the culprit goes wrong.
Outcome run_mutated(const testing::Grid& grid, int culprit, const Mutation& mutation) {
  const config::RunPlan plan = tiny_plan(grid);
  Outcome outcome;
  std::atomic<bool> moved{false};
  try {
    comm::run_ranks(grid.ranks(),
                    [&](comm::World& world) {
                      train::Engine engine(world, plan);
                      engine.allocate();
                      const testing::HashedBatches source(plan.model.vocab_size);
                      engine.step(source, {}, train::Stop::no);
                      const std::vector<float> before = own_values(engine.stage().params());
                      comm::Mutator* mutator = world.rank() == culprit ? &world.mutate(mutation) : nullptr;
                      const auto note = [&] {
                        if (mutator != nullptr) outcome.applied = mutator->applied(), outcome.calls = mutator->calls();
                        if (own_values(engine.stage().params()) != before) moved = true;
                      };
                      try {
                        engine.step(source, {1, plan.train.global_batch}, train::Stop::no);
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

class CollectiveMutation : public ::testing::TestWithParam<std::tuple<testing::Grid, Mutation::Kind, int>> {};

TEST_P(CollectiveMutation, IsCaughtBeforeTheOptimizerMovesAndTheCulpritNamed) {
  const auto& [grid, kind, culprit] = GetParam();
  const Index calls = run_mutated(grid, culprit, {kind, Index{1} << 40}).calls;
  ASSERT_GT(calls, 20);
  int caught = 0;
  for (Index k = 0; k < calls; ++k) {
    SCOPED_TRACE(str("call ", k, " of ", calls));
    const Outcome outcome = run_mutated(grid, culprit, {kind, k});
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

std::string mutation_name(const ::testing::TestParamInfo<std::tuple<testing::Grid, Mutation::Kind, int>>& suite) {
  constexpr const char* kNames[] = {"skip", "twice", "count", "dtype", "reduce", "swap"};
  return std::get<0>(suite.param).name() + "_" + kNames[static_cast<int>(std::get<1>(suite.param))] + "_rank" +
         std::to_string(std::get<2>(suite.param));
}

constexpr testing::Grid kGrids[] = {
    {.tp = 2, .pp = 2}, {.tp = 2, .dp = 2}, {.tp = 2, .dp = 2, .sharding = Sharding::optimizer}};

INSTANTIATE_TEST_SUITE_P(Grids, CollectiveMutation,
                         ::testing::Combine(::testing::ValuesIn(kGrids),
                                            ::testing::Values(Mutation::Kind::skip, Mutation::Kind::twice,
                                                              Mutation::Kind::count, Mutation::Kind::dtype,
                                                              Mutation::Kind::reduce, Mutation::Kind::swap),
                                            ::testing::Range(0, 4)),
                         mutation_name);

TEST(CollectivePattern, RaisesNoFalseAlarmInAThousandSteps) {
  const testing::Grid grid{.tp = 2, .pp = 2};
  const config::RunPlan plan = tiny_plan(grid);
  comm::run_ranks(grid.ranks(), [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const testing::HashedBatches source(plan.model.vocab_size);
    for (Index step = 0; step < 1000; ++step) {
      engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
      if (step % 100 == 7) engine.evaluate(source, plan.train.global_batch);
    }
  });
}

}  // namespace
}  // namespace megalith
