// Steps whose numbers are not finite, and replicas that differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/train/replica_check.h"

#include "tests/train/skipped_steps.h"

namespace megalith {
namespace {

using support::Grid;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Multiplies the first number of a parameter on the ranks that hold it.
void scale_first_number(train::Engine& engine, std::string_view name, double factor) {
  Param* const param = engine.stage().params().find(name);
  if (param != nullptr) param->master.data<float>()[0] *= static_cast<float>(factor);
}

/// The error of a function that all ranks call; empty: none.
template <class Body>
std::string error_on_ranks(const config::RunPlan& plan, Body&& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(plan.grid.world_size));
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    try {
      body(engine);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]) << "all ranks have the same";
  return errors[0];
}

std::string error_of_nan_in(const Grid& grid, const std::vector<const char*>& names) {
  const config::RunPlan plan = support::small_plan(grid, "fp32", 4);
  return error_on_ranks(plan, [&](train::Engine& engine) {
    const support::HashedBatches source(plan.model.vocab_size);
    engine.step(source, {0, 0}, train::Stop::no);
    for (const char* name : names) scale_first_number(engine, name, std::numeric_limits<double>::quiet_NaN());
    engine.step(source, {1, plan.train.global_batch}, train::Stop::no);
  });
}

TEST(WrongNumbers, AStopNamesTheFirstParameter) {
  EXPECT_THAT(error_of_nan_in({.pp = 2}, {"layers.5.mlp.up.weight"}),
              HasSubstr("; on rank 1 layers.5.mlp.up.weight = nan; parameters stay those of step 1"));
  EXPECT_THAT(error_of_nan_in({.tp = 2}, {"layers.6.mlp.up.weight", "layers.2.norm2.bias"}),
              HasSubstr("seen on rank 0, 1; on rank 0 layers.2.norm2.bias = nan; "));
}

// The gradients of one rank are NaN from the loss on. Its last layer is where its backward pass begins.
TEST(WrongNumbers, AStopNamesTheGradientWhereBackwardBegins) {
  for (const auto& [grid, rank] : {std::pair{Grid{.pp = 2}, 1}, {Grid{.dp = 1}, 0}}) {
    const config::RunPlan plan = support::small_plan(grid, "fp32", 4);
    const std::string error = error_on_ranks(plan, [&, of = rank](train::Engine& engine) {
      if (engine.world().rank() == of) support::break_gradients(engine);
      engine.step(support::HashedBatches(plan.model.vocab_size), {0, 0}, train::Stop::no);
    });
    EXPECT_THAT(error, HasSubstr(str("; on rank ", rank, " the gradient of final_norm.weight = nan; ")));
  }
}

std::string error_of_replicas(const Grid& grid, int rank, const char* name) {
  config::RunConfig config = support::small_config(grid, "fp32", 4);
  config.train.global_batch = 4 * grid.dp;
  const config::RunPlan plan = config::resolve(config);
  return error_on_ranks(plan, [&](train::Engine& engine) {
    engine.step(support::HashedBatches(plan.model.vocab_size), {0, 0}, train::Stop::no);
    if (engine.world().rank() == rank) scale_first_number(engine, name, 1 + 1e-6);
    train::HostStaging staging;
    train::require_equal_replicas(engine, staging);
  });
}

TEST(WrongNumbers, ReplicasThatDifferAreNamed) {
  EXPECT_THAT(error_of_replicas({.dp = 2}, -1, ""), IsEmpty());
  EXPECT_THAT(error_of_replicas({.tp = 2, .dp = 2}, -1, ""), IsEmpty()) << "slices over tp differ";
  EXPECT_THAT(error_of_replicas({.tp = 4}, 1, "layers.3.mlp.up.weight"), IsEmpty()) << "no replicas over dp";
  EXPECT_THAT(error_of_replicas({.dp = 3}, 1, "layers.3.mlp.up.weight"),
              HasSubstr("[replicas] layers.3.mlp.up.weight on rank 1 is not that of rank 0,2: "));
  EXPECT_THAT(error_of_replicas({.tp = 2, .dp = 3}, 5, "layers.0.mlp.up.weight"),
              HasSubstr("layers.0.mlp.up.weight on rank 5 is not that of rank 1,3: "));
  const std::string of_two = error_of_replicas({.pp = 2, .dp = 2}, 3, "layers.7.norm1.weight");
  EXPECT_THAT(of_two, ::testing::ContainsRegex("layers.7.norm1.weight differs between rank (2 and 3|3 and 2): "));
}

TEST(WrongNumbers, ShardsOfTheOptimizerAreNoReplicas) {
  EXPECT_THAT(error_of_replicas({.pp = 2, .dp = 2, .sharding = Sharding::optimizer}, 1, "layers.3.mlp.up.weight"),
              IsEmpty());
}

}  // namespace
}  // namespace megalith
