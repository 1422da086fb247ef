#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/config/keys.h"
#include "megalith/config/model_changes.h"
#include "megalith/config/run_plan.h"

#include "tests/config/small_recipe.h"

// model.family = "bert" and section [bert].
namespace megalith::config {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kFamily = {"model.family=bert"};

std::vector<std::string> and_bert(std::vector<std::string> settings) {
  settings.insert(settings.begin(), kFamily.begin(), kFamily.end());
  return settings;
}
RunPlan bert_plan_of(std::vector<std::string> settings = {}) {
  return resolve(parse_recipe(kSmall, "r.toml", and_bert(std::move(settings))));
}
std::string bert_problem(std::vector<std::string> settings) {
  return problem_of(kSmall, and_bert(std::move(settings)));
}

TEST(BertRules, TheFamilySetsWhatNoKeySets) {
  const RunPlan plan = resolve(parse_recipe(R"(
[model]
family = "bert"
num_layers = 4
hidden_size = 64
num_heads = 4
[train]
steps = 10
[data]
tokenizer = "byte"
train = "corpus.txt"
)",
                                            "r.toml"));
  EXPECT_EQ(plan.model.seq_len, 512);
  EXPECT_EQ(plan.model.token_types, 2);
  EXPECT_EQ(plan.model.dropout, 0.1);
  EXPECT_EQ(plan.model.attention_mask(), ops::AttentionMask::full);
  EXPECT_EQ(plan.model.lengths, ops::SampleLengths::given);
  EXPECT_FALSE(plan.model.is_post_norm());
  EXPECT_EQ(plan.model.bert.order, data::SentenceOrder::sop);
  EXPECT_EQ(plan.model.bert.max_masked(), 76);
  EXPECT_EQ(bert_plan_of({"model.seq_len=100"}).model.bert.max_masked(), 14);
  EXPECT_EQ(bert_plan_of({"model.token_types=3"}).model.token_types, 3);
}

TEST(BertRules, AResolvedRecipeGivesTheSamePlan) {
  const RunPlan plan = bert_plan_of({"bert.order=nsp", "bert.mask_fraction=0.2", "bert.max_ngram=2",
                                     "bert.whole_words=false", "bert.short_fraction=0.0"});
  const RunPlan again = resolve(parse_recipe(to_toml(plan.as_config()), "again.toml"));
  EXPECT_EQ(again.model.bert.order, data::SentenceOrder::nsp);
  EXPECT_EQ(again.model.bert.mask_fraction, 0.2);
  EXPECT_EQ(again.model.bert.max_ngram, 2);
  EXPECT_FALSE(again.model.bert.whole_words);
  EXPECT_EQ(again.model.bert.short_fraction, 0);
  EXPECT_EQ(to_toml(again.as_config()), to_toml(plan.as_config()));
  const std::string gpt2 = to_toml(resolve(parse_recipe(kSmall, "r.toml")).as_config());
  EXPECT_EQ(gpt2.find("[bert]"), std::string::npos) << gpt2;
}

TEST(BertRules, PresetsAreModelsOfTheFamily) {
  const auto preset = [](const char* name) {
    return resolve(parse_recipe("[train]\nsteps = 1\n[data]\ntrain = \"x\"\nvocab_dir = \"v\"\n", "r.toml",
                                std::vector<std::string>{std::string("model.preset=") + name}));
  };
  const model::ModelConfig pre = preset("bert-1.3b").model, post = preset("bert-base").model;
  EXPECT_TRUE(pre.is_bert());
  EXPECT_EQ(pre.hidden_size, 2048);
  EXPECT_EQ(pre.activation, nn::Activation::gelu);
  EXPECT_FALSE(pre.is_post_norm());
  EXPECT_TRUE(post.is_post_norm());
  EXPECT_EQ(post.activation, nn::Activation::gelu_erf);
  EXPECT_EQ(post.norm_eps, 1e-12);
  EXPECT_EQ(post.vocab_size, 30'522);
}

TEST(BertRules, EveryBrokenRuleIsNamed) {
  EXPECT_THAT(problem_of(kSmall, {"bert.order=sop", "bert.max_ngram=2"}),
              HasSubstr("2 problems\n  bert.order = sop: is for model.family = bert; remove it\n  bert.max_ngram = 2: "
                        "is for model.family = bert; remove it"));
  EXPECT_THAT(bert_problem({"moe.num_experts=4"}), HasSubstr("model.family = bert: has no experts; leave out section "
                                                             "[moe]"));
  EXPECT_THAT(bert_problem({"model.seq_len=7"}), HasSubstr("model.seq_len = 7: must be at least 8 with model.family = "
                                                           "bert: [CLS] A [SEP] B [SEP]"));
  EXPECT_EQ(bert_problem({"model.seq_len=8"}), "");
  EXPECT_THAT(bert_problem({"bert.mask_fraction=0.0"}), HasSubstr("bert.mask_fraction = 0"));
  EXPECT_THAT(bert_problem({"bert.mask_fraction=0.51"}),
              HasSubstr("bert.mask_fraction = 0.51: must be above 0, at most 0.5"));
  EXPECT_EQ(bert_problem({"bert.mask_fraction=0.5"}), "");
  EXPECT_THAT(bert_problem({"bert.max_ngram=0"}), HasSubstr("bert.max_ngram = 0"));
  EXPECT_THAT(bert_problem({"bert.max_ngram=11"}), HasSubstr("bert.max_ngram = 11: must be at most 10"));
  EXPECT_THAT(bert_problem({"bert.short_fraction=1.0"}), HasSubstr("bert.short_fraction = 1"));
  EXPECT_THAT(bert_problem({"bert.order=sob"}), HasSubstr("bert.order = sob: must be sop, nsp or none; did you mean "
                                                          "sop?"));
  EXPECT_THAT(bert_problem({"model.activation=swiglu"}),
              HasSubstr("model.activation = swiglu: must be gelu or gelu_erf with model.family = bert"));
  EXPECT_THAT(bert_problem({"model.token_types=1"}), HasSubstr("model.token_types = 1: must be at least 2"));
  EXPECT_EQ(bert_problem({"model.token_types=0", "bert.order=none"}), "");
  EXPECT_THAT(bert_problem({"model.seq_len=7", "bert.max_ngram=11", "bert.mask_fraction=0.7"}),
              HasSubstr("3 problems"));
}

TEST(BertRules, AnotherFamilyIsAnotherModel) {
  const RunPlan gpt2 = resolve(parse_recipe(kSmall, "r.toml")), bert = bert_plan_of();
  EXPECT_THAT(model_changes(gpt2, bert).refused,
              ::testing::Contains("model.family = bert: the checkpoint's model has gpt2"));
  EXPECT_THAT(model_changes(bert, bert_plan_of({"bert.order=none"})).refused,
              ::testing::ElementsAre("bert.order = none: the checkpoint's model has sop"));
  EXPECT_THAT(model_changes(bert, bert_plan_of({"bert.order=nsp", "bert.max_ngram=1"})).refused, ::testing::IsEmpty());
}

}  // namespace
}  // namespace megalith::config
