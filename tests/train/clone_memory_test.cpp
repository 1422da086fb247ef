// Whether slots of clones keep weights for backward: where the hosts of a run have room for them.
#include "megalith/train/clone_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/text.h"
#include "megalith/nn/moe/echo.h"
#include "megalith/train/run_memory.h"

#include "tests/train/moe_run.h"

namespace megalith::train {
namespace {

constexpr Index kSmallWidth = 32, kHugeWidth = Index{1} << 14;  // 64 layers of 4 experts of 3 GB on a rank

config::RunPlan plan_of_width(Index hidden_size, const char* weights) {
  config::RunConfig c = support::moe_config({2, 1, 1, 2, 1}, {"", [](config::RunConfig&) {}}, "fp32", 1);
  if (hidden_size == kHugeWidth) c.model.num_layers = 64;
  c.model.hidden_size = hidden_size;
  c.model.head_dim = hidden_size / 4;
  c.moe.ffn_hidden_size = hidden_size;
  c.moe.echo.slots = 3;
  c.moe.echo.weights = weights;
  return config::resolve(c);
}

nn::EchoWeights chosen_weights(const config::RunPlan& plan) {
  std::vector<nn::EchoWeights> all(2);
  comm::run_ranks(2, [&](comm::World& world) {
    all[static_cast<std::size_t>(world.rank())] = with_clone_weights(world, plan).model.moe.echo.weights;
  });
  EXPECT_EQ(all[0], all[1]);
  return all[0];
}

TEST(CloneWeights, AreKeptWhereHostsHaveRoom) {
  EXPECT_EQ(chosen_weights(plan_of_width(kSmallWidth, "auto")), nn::EchoWeights::keep);
  EXPECT_EQ(chosen_weights(plan_of_width(kHugeWidth, "auto")), nn::EchoWeights::redispatch);
}

TEST(CloneWeights, AreAsARecipeSetsThem) {
  EXPECT_EQ(chosen_weights(plan_of_width(kHugeWidth, "keep")), nn::EchoWeights::keep);
  EXPECT_EQ(chosen_weights(plan_of_width(kSmallWidth, "redispatch")), nn::EchoWeights::redispatch);
  config::RunPlan without = plan_of_width(kHugeWidth, "auto");
  without.model.moe.echo.slots = 0;
  EXPECT_EQ(chosen_weights(without), nn::EchoWeights::automatic);
}

TEST(CloneWeights, OfARunThatDoesNotFitAreNamed) {
  const config::RunPlan keep = plan_of_width(kSmallWidth, "keep"), again = plan_of_width(kSmallWidth, "redispatch");
  const auto planned = [](const config::RunPlan& plan) { return planned_bytes(plan, 0); };
  // Slots of 4 layers and a microbatch in flight, less those that all layers share.
  const Index of_layer = 3 * 3 * kSmallWidth * kSmallWidth * 4;
  EXPECT_EQ(planned(keep).at(nn::Echo::kSlotsOwner), 4 * of_layer);
  EXPECT_EQ(planned(again).at(nn::Echo::kSlotsOwner), 0);
  const Index less = total(planned(keep)) - total(planned(again));
  EXPECT_GT(less, 0);
  EXPECT_EQ(clone_weights_advice(keep, planned(keep), planned),
            str(", or moe.echo.weights = redispatch, which takes ", human_bytes(less), " less"));
  EXPECT_EQ(clone_weights_advice(again, planned(again), planned), "");
}

}  // namespace
}  // namespace megalith::train
