#include "megalith/config/model_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/config/keys.h"

#include "tests/config/small_recipe.h"

// Which models may begin with the values of another (train.init).
namespace megalith::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Settings = std::vector<std::string>;

RunPlan planned(const Settings& settings) { return resolve(parse_recipe(kSmall, "r.toml", settings)); }

/// From the first model to one with more settings.
ModelChanges changes(const Settings& saved, const Settings& more) {
  Settings all = saved;
  all.insert(all.end(), more.begin(), more.end());
  return model_changes(planned(saved), planned(all));
}

const Settings kLlama = {"model.family=llama"};
const Settings kEightExperts = {"moe.num_experts=8", "moe.num_groups=2"};

TEST(ModelChanges, ResolvedValuesAreCompared) {
  EXPECT_THAT(changes(kLlama, {"model.head_dim=16", "model.num_kv_heads=4", "model.ffn_hidden_size=256",
                               "model.norm=rms", "model.rope_theta=10000"})
                  .refused,
              IsEmpty());
  EXPECT_THAT(
      model_changes(planned({"model.family=llama", "model.head_dim=16", "model.num_kv_heads=4"}), planned(kLlama))
          .refused,
      IsEmpty());
  EXPECT_THAT(changes(kLlama, {"model.head_dim=32", "model.num_kv_heads=2"}).refused,
              ElementsAre("model.num_kv_heads = 2: the checkpoint's model has 4",
                          "model.head_dim = 32: the checkpoint's model has 16"));
  EXPECT_THAT(changes({}, {"model.num_heads=2", "model.norm_eps=1e-6"}).refused,
              ElementsAre("model.num_heads = 2: the checkpoint's model has 4",
                          "model.norm_eps = 1e-06: the checkpoint's model has 1e-05"))
      << "what follows from another key is not named";
  const Settings spelt_out = {"model.norm=rms",  "model.position=rope", "model.activation=swiglu",
                              "model.bias=none", "model.tied=false",    "model.ffn_hidden_size=256",
                              "model.dropout=0"};
  EXPECT_THAT(model_changes(planned(kLlama), planned(spelt_out)).refused, IsEmpty()) << "a family sets other keys";
}

// Each by name, with both values.
TEST(ModelChanges, KeysOfExpertsThatMakeAnotherModelAreRefused) {
  const std::pair<const char*, const char*> keys[] = {{"moe.num_experts=4", "8"},
                                                      {"moe.top_k=1", "2"},
                                                      {"moe.ffn_hidden_size=32", "256"},
                                                      {"moe.pattern=dm", "m"},
                                                      {"moe.score=sigmoid", "softmax"},
                                                      {"moe.score_before_top_k=false", "true"},
                                                      {"moe.normalize_top_k=true", "false"},
                                                      {"moe.scale=2.5", "1"},
                                                      {"moe.num_groups=4", "2"},
                                                      {"moe.group_top_k=1", "2"},
                                                      {"moe.shared_ffn_hidden_size=16", "0"}};
  for (const auto& [setting, was] : keys) {
    const std::string text = setting, key = text.substr(0, text.find('=')), is = text.substr(key.size() + 1);
    // Groups are looked at as many as there are.
    const Settings more = key == "moe.num_groups" ? Settings{text, "moe.group_top_k=2"} : Settings{text};
    EXPECT_THAT(changes(kEightExperts, more).refused,
                ElementsAre(str(key, " = ", is, ": the checkpoint's model has ", was)));
  }
  Settings shared = kEightExperts;
  shared.emplace_back("moe.shared_ffn_hidden_size=16");
  EXPECT_THAT(changes(shared, {"moe.shared_gate=true"}).refused,
              ElementsAre("moe.shared_gate = true: the checkpoint's model has false"));
  EXPECT_THAT(changes({}, kEightExperts).refused, ElementsAre("moe.num_experts = 8: the checkpoint's model has 0"));
  EXPECT_THAT(model_changes(planned(kEightExperts), planned({})).refused,
              ElementsAre("moe.num_experts = 0: the checkpoint's model has 8"));
}

// All keys of [moe] that a resume must not change are in the test above.
TEST(ModelChanges, EveryKeyOfTheTableIsDecided) {
  Settings must_match;
  for (const Key& key : keys()) {
    if (key.name.starts_with("moe.") && key.resume.rule == OnResume::must_match) must_match.emplace_back(key.name);
  }
  EXPECT_THAT(must_match, ElementsAre("moe.num_experts", "moe.top_k", "moe.ffn_hidden_size", "moe.pattern", "moe.score",
                                      "moe.score_before_top_k", "moe.normalize_top_k", "moe.scale", "moe.num_groups",
                                      "moe.group_top_k", "moe.shared_ffn_hidden_size", "moe.shared_gate"));
}

TEST(ModelChanges, LossesAndCapacityMayChange) {
  const ModelChanges free = changes(
      kEightExperts, {"moe.aux_loss=0.1", "moe.aux_scope=global", "moe.z_loss=0.01", "moe.capacity=drop",
                      "moe.capacity_factor=1.5", "moe.capacity_run=16", "moe.drop_by=position", "model.dropout=0.2"});
  EXPECT_THAT(free.refused, IsEmpty());
  EXPECT_THAT(free.taken, IsEmpty());
  Settings sigmoid = kEightExperts;
  sigmoid.emplace_back("moe.score=sigmoid");
  EXPECT_THAT(changes(sigmoid, {"moe.expert_bias_rate=0.01"}).refused, IsEmpty());
}

TEST(ModelChanges, KeysOfOneMeaningAreOneModel) {
  Settings after = kEightExperts, both = kEightExperts;
  after.emplace_back("moe.score_before_top_k=false");
  both.emplace_back("moe.normalize_top_k=true");
  EXPECT_THAT(model_changes(planned(after), planned(both)).refused, IsEmpty()) << "the weights sum to 1";
  EXPECT_THAT(changes(kEightExperts, {"moe.pattern=mm"}).refused, IsEmpty());
  EXPECT_THAT(changes(kEightExperts, {"model.ffn_hidden_size=128", "moe.ffn_hidden_size=256"}).refused, IsEmpty())
      << "no layer is dense";
  Settings dense = kEightExperts;
  dense.insert(dense.end(), {"moe.pattern=dm", "moe.ffn_hidden_size=256"});
  EXPECT_THAT(changes(dense, {"model.ffn_hidden_size=128"}).refused,
              ElementsAre("model.ffn_hidden_size = 128: the checkpoint's model has 256"));
}

TEST(ModelChanges, RotatedPositionsTakeAnotherLength) {
  const ModelChanges longer = changes(kLlama, {"model.seq_len=64", "model.rope_theta=50000.0", "model.rope_factor=4.0",
                                               "model.rope_scaling=llama3", "model.rope_original_seq_len=32"});
  EXPECT_THAT(longer.refused, IsEmpty());
  EXPECT_THAT(longer.taken, ElementsAre("model.rope_theta = 50000: the checkpoint's model has 10000",
                                        "model.rope_scaling = llama3: the checkpoint's model has none",
                                        "model.rope_factor = 4: the checkpoint's model has 1",
                                        "model.rope_original_seq_len = 32: the checkpoint's model has 8192",
                                        "model.seq_len = 64: the checkpoint's model has 32"));
  const ModelChanges table = changes({}, {"model.seq_len=64"});
  EXPECT_THAT(table.refused, ElementsAre("model.seq_len = 64: the checkpoint's model has 32"));
  EXPECT_THAT(table.taken, IsEmpty());
  EXPECT_THAT(changes({}, {"model.position=rope", "model.rope_theta=500.0"}).refused,
              ElementsAre("model.position = rope: the checkpoint's model has learned"));
}

}  // namespace
}  // namespace megalith::config
