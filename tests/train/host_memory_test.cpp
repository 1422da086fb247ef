#include "megalith/train/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/host_limits.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/train/engine.h"
#include "megalith/train/recompute_choices.h"

#include "tests/train/small_run.h"

namespace megalith::train {
namespace {

TEST(HostMemoryOfRanks, IsAddedUpByHost) {
  const auto lack = [](const std::vector<HostShare>& ranks) {
    return lack_of_host_memory(ranks, "graphs.check = 2", "less");
  };
  EXPECT_EQ(lack({{1, 512, 1024}, {1, 512, 1024}, {2, 900, 1000}}), "");
  EXPECT_EQ(lack({{1, 512, 1024}, {2, 900, 1000}, {2, 1148, 1100}}),
            "graphs.check = 2: needs 2.00 KiB (2048 bytes) of host memory for the 2 ranks on the host of rank 1, which "
            "has 1000 B (1000 bytes) free: less");
  EXPECT_EQ(lack({{1, 1025, 1024}}),
            "graphs.check = 2: needs 1.00 KiB (1025 bytes) of host memory for the rank on the host of rank 0, which "
            "has 1.00 KiB (1024 bytes) free: less");
}

TEST(HostMemoryOfRanks, TooLittleIsToldToAllRanks) {
  comm::run_ranks(3, [](comm::World& world) {
    EXPECT_EQ(lack_of_host_memory(world, 1, "graphs.check = 2", "less"), "");
    const std::string lack = lack_of_host_memory(world, Index{1} << 50, "graphs.check = 2", "less");
    EXPECT_NE(lack.find("graphs.check = 2: needs 3072.00 TiB"), std::string::npos) << lack;
    EXPECT_NE(lack.find("for the 3 ranks on the host of rank 0"), std::string::npos) << lack;
  });
}

TEST(RecomputeThatFits, IsTheOneThatRepeatsLeast) {
  const config::RunPlan plan = support::small_plan({}, "fp32", 1);
  const auto less_with = [&](std::size_t choice) {
    const nn::RecomputeConfig& config = recompute_choices(plan)[choice].config;
    return total(planned_bytes(plan, 0)) - total(planned_bytes(with_recompute(plan, config), 0));
  };
  const auto advice = [&](Index missing) {
    return recompute_that_fits(
        plan, planned_bytes(plan, 0), [](const config::RunPlan& other) { return planned_bytes(other, 0); },
        [&](Index less) { return less >= missing; });
  };
  EXPECT_EQ(less_with(0), 0);
  ASSERT_LT(less_with(1), less_with(2));
  ASSERT_LT(less_with(2), less_with(3));
  ASSERT_LT(less_with(3), less_with(4));
  EXPECT_EQ(advice(1), str(", or recompute.mode = selective, recompute.modules = [gelu, norms], which takes ",
                           human_bytes(less_with(1)), " less"));
  EXPECT_THAT(advice(less_with(1) + 1), ::testing::HasSubstr("[gelu, norms, attention]"));
  EXPECT_THAT(advice(less_with(3)), ::testing::HasSubstr("[norms, attention, mlp]"));
  EXPECT_THAT(advice(less_with(4)), ::testing::HasSubstr("recompute.mode = full, which takes"));
  EXPECT_EQ(advice(less_with(4) + 1), "");
}

// With a sharded optimizer, too.
TEST(HostMemoryOfRanks, ThePlanIsRefusedBeforeAnythingIsTaken) {
  const auto refusal = [](const support::Grid& grid) -> std::string {
    config::RunConfig asked = support::small_config(grid, "fp32", 1);
    asked.model.hidden_size = 65536;
    asked.model.ffn_hidden_size = 262144;
    asked.model.num_heads = 64;
    const config::RunPlan plan = config::resolve(asked);
    try {
      comm::run_ranks(grid.ranks(), [&](comm::World& world) { train::Engine(world, plan).allocate(); });
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  };
  const std::string one = refusal({}), sharded = refusal({.dp = 2, .sharding = Sharding::optimizer});
  EXPECT_NE(one.find("[memory] the plan: needs "), std::string::npos) << one;
  EXPECT_NE(one.find(" TiB ("), std::string::npos) << one;
  EXPECT_NE(one.find("use a smaller train.micro_batch or model, or more ranks on more hosts"), std::string::npos);
  EXPECT_NE(sharded.find("for the 2 ranks on the host of rank 0"), std::string::npos) << sharded;
  EXPECT_THAT(one, ::testing::Not(::testing::HasSubstr("recompute"))) << "no recomputation makes its parameters fit";
}

// Activations take more than the host has, by half or more; whole layers recomputed take a fraction.
TEST(HostMemoryOfRanks, ARefusalNamesTheRecomputationThatFits) {
  const std::optional<Index> available = host_limits().memory_available;
  if (!available) GTEST_SKIP() << "this host does not report how much memory it has";
  config::RunPlan plan = support::small_plan({}, "fp32", 1);
  for (Index samples = 1 << 10; total(planned_bytes(plan, 0)) < *available * 3 / 2; samples += samples / 2) {
    config::RunConfig asked = support::small_config({}, "fp32", 1);
    asked.model.num_layers = 64;
    asked.train.micro_batch = asked.train.global_batch = samples;
    plan = config::resolve(asked);
  }
  comm::run_ranks(1, [&](comm::World& world) {
    try {
      Engine(world, plan).allocate();
      FAIL() << "nothing was thrown";
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("more hosts, or recompute.mode = "));
    }
  });
}

}  // namespace
}  // namespace megalith::train
