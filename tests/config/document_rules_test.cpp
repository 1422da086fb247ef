#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/config/small_recipe.h"

// data.attend_across_documents and data.chat_packing: whether samples have documents.
namespace megalith::config {
namespace {

using ::testing::HasSubstr;

RunPlan plan_with(const std::vector<std::string>& settings) {
  return resolve(parse_recipe(kSmall, "r.toml", settings));
}

TEST(DocumentRules, SamplesHaveDocumentsWhereAKeySeparatesThem) {
  const std::string chat = "data.format=chat", apart = "data.attend_across_documents=false";
  EXPECT_EQ(plan_with({}).model.documents, ops::DocumentMask::none);
  EXPECT_EQ(plan_with({apart}).model.documents, ops::DocumentMask::given);
  EXPECT_EQ(plan_with({chat}).model.documents, ops::DocumentMask::given);
  EXPECT_EQ(plan_with({chat, "data.chat_packing=false"}).model.documents, ops::DocumentMask::none);
  const RunPlan again = resolve(parse_recipe(to_toml(plan_with({apart}).as_config()), "again.toml"));
  EXPECT_EQ(again.model.documents, ops::DocumentMask::given);
}

TEST(DocumentRules, KeysWithoutEffectAreNamed) {
  EXPECT_THAT(plan_with({"data.chat_packing=false"}).recipe_warnings,
              ::testing::Contains(HasSubstr("data.chat_packing")));
  EXPECT_THAT(plan_with({"data.format=chat", "data.attend_across_documents=false"}).recipe_warnings,
              ::testing::Contains(HasSubstr("data.attend_across_documents")));
}

TEST(DocumentRules, BertRefusesThem) {
  EXPECT_THAT(problem_of(kSmall, {"model.family=bert", "data.attend_across_documents=false"}),
              HasSubstr("data.attend_across_documents = false: must be true with model.family = bert"));
}

}  // namespace
}  // namespace megalith::config
