#include "megalith/config/task_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/config/small_recipe.h"

// What a fine-tuning recipe takes from the model of task.init.
namespace megalith::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// The recipe that a checkpoint of a BERT has: without the keys whose value is GPT-2's.
RunConfig of_init(std::vector<std::string> settings = {}) {
  settings.insert(settings.begin(), "model.family=bert");
  return parse_recipe(to_toml(resolve(parse_recipe(kSmall, "r.toml", settings)).as_config()), "checkpoint's recipe");
}

struct Taken {
  RunConfig asked;
  std::vector<std::string> refused;
};
Taken take(const RunConfig& init, const std::vector<std::string>& settings) {
  Taken taken{parse_recipe("[task]\nname = \"mnli\"\n", "r.toml", settings), {}};
  take_model(init, taken.asked, taken.refused);
  return taken;
}
std::vector<std::string> refused(const std::vector<std::string>& settings, const RunConfig& init = of_init()) {
  return take(init, settings).refused;
}

TEST(TakeModel, KeysThatTheInitHasAsDefaultsAreComparedToo) {
  EXPECT_THAT(
      refused({"model.activation=gelu_erf", "model.norm=rms", "model.norm_placement=post", "model.norm_eps=1e-12",
               "model.bias=none", "model.num_kv_heads=2", "model.head_dim=8", "model.qk_norm=head", "model.tied=false",
               "model.position=rope", "model.num_positions=64", "model.token_types=3"}),
      ElementsAre("model.num_kv_heads = 2: task.init has 4; remove the key",
                  "model.head_dim = 8: task.init has 16; remove the key",
                  "model.norm = rms: task.init has layer; remove the key",
                  "model.norm_eps = 1e-12: task.init has 1e-05; remove the key",
                  "model.norm_placement = post: task.init has pre; remove the key",
                  "model.position = rope: task.init has learned; remove the key",
                  "model.qk_norm = head: task.init has none; remove the key",
                  "model.activation = gelu_erf: task.init has gelu; remove the key",
                  "model.bias = none: task.init has all; remove the key",
                  "model.tied = false: task.init has true; remove the key",
                  "model.token_types = 3: task.init has 2; remove the key",
                  "model.num_positions = 64: task.init has 32; remove the key"));
  EXPECT_THAT(refused({"model.rope_theta=5000"}),
              ElementsAre("model.rope_theta = 5000: task.init has model.position = learned; remove the key"));
}

TEST(TakeModel, KeysThatAgreeAreTaken) {
  EXPECT_THAT(refused({"model.activation=gelu", "model.norm=layer", "model.norm_placement=pre", "model.norm_eps=1e-5",
                       "model.bias=all", "model.num_kv_heads=4", "model.head_dim=16", "model.qk_norm=none",
                       "model.tied=true", "model.position=learned", "model.num_positions=32", "model.seq_len=16",
                       "model.dropout=0.2", "model.hidden_size=64"}),
              IsEmpty());
  EXPECT_THAT(
      refused({"model.norm_eps=1e-12", "model.head_dim=8"}, of_init({"model.norm_eps=1e-12", "model.head_dim=8"})),
      IsEmpty());
  EXPECT_THAT(refused({"model.norm_placement=pre"}, of_init({"model.norm_placement=post"})),
              ElementsAre("model.norm_placement = pre: task.init has post; remove the key"));
  EXPECT_EQ(take(of_init(), {"model.seq_len=16"}).asked.model.num_positions, 32);
}

TEST(TakeModel, AModelOfRotationsHasNoTableOfPositions) {
  const RunConfig init = of_init({"model.position=rope", "model.rope_theta=5000"});
  const Taken taken = take(init, {"model.seq_len=64", "model.rope_theta=5000"});
  EXPECT_THAT(taken.refused, IsEmpty());
  EXPECT_EQ(taken.asked.model.num_positions, std::nullopt);
  EXPECT_THAT(refused({"model.num_positions=32", "model.rope_theta=10000"}, init),
              ElementsAre("model.rope_theta = 10000: task.init has 5000; remove the key",
                          "model.num_positions = 32: task.init has model.position = rope; remove the key"));
}

TEST(TaskRules, OneTokenTypeIsNotExplainedByKeysOfPretraining) {
  const std::string problem =
      problem_of(kSmall, {"task.name=mnli", "task.epochs=1", "optimizer.lr=1e-3", "model.token_types=1"});
  EXPECT_NE(problem.find("model.token_types = 1: must be at least 2"), std::string::npos) << problem;
  EXPECT_EQ(problem.find("bert.order"), std::string::npos) << problem;
}

}  // namespace
}  // namespace megalith::config
