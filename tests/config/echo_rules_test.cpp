// The rows that ranks of experts have room for with clones (docs/echo.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/config/moe_rules.h"

namespace megalith::config {
namespace {

using ::testing::HasSubstr;

/// 16 experts, two of a token; a rank has 2048 pairs in a microbatch.
constexpr const char* kEchoRecipe = R"(
[model]
num_layers = 2
hidden_size = 64
num_heads = 4
seq_len = 1024
[moe]
num_experts = 16
echo.slots = 3
echo.min_pairs = 0
[train]
steps = 10
[data]
tokenizer = "byte"
train = "corpus.txt"
)";

RunPlan echo_plan(const std::vector<std::string>& settings) {
  return resolve(read_recipe(kEchoRecipe, "r.toml", settings));
}
std::string echo_factor(const std::vector<std::string>& settings) {
  return echo_plan(settings).model.moe.rank_capacity_factor.text();
}
std::string echo_problem(const std::vector<std::string>& settings) {
  try {
    echo_plan(settings);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(EchoRules, RanksHaveRoomForALittleMoreThanTheirEvenShare) {
  EXPECT_EQ(echo_factor({"parallel.ep=2"}), "1.25");
  EXPECT_EQ(echo_factor({"parallel.ep=4"}), "2") << "of one expert: ep / top_k";
  EXPECT_EQ(echo_factor({"parallel.ep=4", "moe.top_k=4"}), "1.25");
  EXPECT_EQ(echo_factor({"parallel.ep=4", "moe.echo.slots=0"}), "2") << "no clones";
  EXPECT_EQ(echo_factor({}), "worst") << "one rank";
  EXPECT_EQ(echo_factor({"parallel.ep=2", "moe.dispatcher=all_to_all"}), "worst");
  EXPECT_EQ(echo_factor({"parallel.ep=2", "moe.rank_capacity_factor=1.1"}), "1.1");
  EXPECT_EQ(echo_factor({"parallel.ep=2", "moe.rank_capacity_factor=worst"}), "worst");
}

TEST(EchoRules, WhatIsLessThanAClonesLeastPartHasRoom) {
  EXPECT_EQ(echo_factor({"parallel.ep=2", "moe.echo.min_pairs=512"}), "1.25");
  EXPECT_EQ(echo_factor({"parallel.ep=2", "moe.echo.min_pairs=600"}), "1.293") << "1 + 600 / 2048, rounded up";
  EXPECT_EQ(echo_factor({"parallel.ep=2", "moe.echo.min_pairs=600", "train.micro_batch=2"}), "1.25");
  EXPECT_EQ(echo_factor({"parallel.ep=2", "moe.echo.min_pairs=100000"}), "worst") << "2 is the worst case";
  EXPECT_EQ(echo_factor({"parallel.ep=2", "moe.echo.min_pairs=600", "parallel.tp=2", "parallel.etp=1"}), "1.586")
      << "a rank routes half of the rows";
}

TEST(EchoRules, ExactPlansNeedTheEvenShare) {
  EXPECT_EQ(echo_factor({"parallel.ep=4", "moe.echo.balance=exact", "moe.echo.slots=4"}), "1");
  EXPECT_EQ(echo_factor({"parallel.ep=4", "moe.echo.balance=exact", "moe.echo.slots=3"}), "2")
      << "a rank may need a slot for each expert of another";
}

TEST(EchoRules, RoomIsAtLeastTheEvenShareAndOneExpert) {
  EXPECT_THAT(
      echo_problem({"parallel.ep=2", "moe.rank_capacity_factor=0.999"}),
      HasSubstr("moe.rank_capacity_factor = 0.999: must be at least 1: clones of experts give each rank its even "
                "share of rows or more"));
  EXPECT_THAT(echo_problem({"parallel.ep=2", "moe.top_k=4", "moe.rank_capacity_factor=0.6"}),
              HasSubstr("at least 1: "));
  EXPECT_EQ(echo_problem({"parallel.ep=2", "moe.rank_capacity_factor=1"}), "");
  EXPECT_THAT(echo_problem({"parallel.ep=8", "moe.rank_capacity_factor=3.9"}),
              HasSubstr("must be at least parallel.ep / moe.top_k = 8 / 2"));
  EXPECT_EQ(echo_problem({"parallel.ep=8", "moe.rank_capacity_factor=1", "moe.echo.balance=exact"}), "")
      << "two experts of a rank, three slots";
  EXPECT_THAT(echo_problem({"parallel.ep=2", "moe.rank_capacity_factor=2", "moe.dispatcher=all_to_all"}),
              HasSubstr("is for ranks that read each other's rows"));
}

TEST(EchoRules, APlanKeepsItsFactor) {
  for (const RunPlan& plan : {echo_plan({"parallel.ep=2"}), echo_plan({"parallel.ep=4", "moe.echo.balance=exact"}),
                              echo_plan({"parallel.ep=2", "moe.echo.min_pairs=600"})})
    EXPECT_EQ(to_toml(resolve(plan.as_config()).as_config()), to_toml(plan.as_config()));
}

}  // namespace
}  // namespace megalith::config
