#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "megalith/config/keys.h"
#include "megalith/config/run_plan.h"

#include "tests/test_data.h"

namespace megalith::config {
namespace {

std::string page() {
  std::ifstream file(MEGALITH_TEST_DATA "/../../docs/recipe.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Key to value in the resolved form of a recipe that sets no more than it must.
std::map<std::string, std::string> defaults() {
  const RunPlan plan = resolve(parse_recipe(R"(
[model]
num_layers = 2
hidden_size = 16
num_heads = 1
[train]
steps = 7
[data]
tokenizer = "byte"
train = "text.txt"
)",
                                            "smallest.toml"));
  std::map<std::string, std::string> found;
  for (auto& [key, value] : toml_values(plan.as_config())) {
    std::erase(value, '\'');
    found.emplace(key, value);
  }
  return found;
}

// To mend the page: replace its tables by those that `megalith recipe --keys` prints, or run scripts/recipe-docs.
TEST(RecipeDocs, TheTablesAreThoseOfTheKeys) {
  std::istringstream lines(page());
  std::string section, table;
  std::map<std::string, std::string> tables;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## `[")) section = line.substr(5, line.find(']') - 5);
    if (line.starts_with("## ") && !line.starts_with("## `[")) section.clear();
    if (line.starts_with('|')) tables[section] += line + '\n';
  }
  EXPECT_EQ(tables.size(), key_sections().size());
  for (const std::string_view name : key_sections())
    EXPECT_EQ(tables[std::string(name)], key_table(name)) << "docs/recipe.md is stale: run scripts/recipe-docs";
}

TEST(RecipeDocs, SayTheDefaults) {
  // What is no value in itself is described in words; of these a resolved recipe has what follows from the smallest
  // one.
  const std::map<std::string, std::string> derived = {{"model.num_layers", "2"},
                                                      {"model.hidden_size", "16"},
                                                      {"model.num_heads", "1"},
                                                      {"model.ffn_hidden_size", "64"},
                                                      {"model.seq_len", "1024"},
                                                      {"model.vocab_size", "256"},
                                                      {"model.padded_vocab_size", "256"},
                                                      {"model.attention_dropout", "0.1"},
                                                      {"model.embedding_dropout", "0.1"},
                                                      {"parallel.ranks", "1"},
                                                      {"train.steps", "7"},
                                                      {"train.global_batch", "1"},
                                                      {"train.precision", "fp32"},
                                                      {"optimizer.min_lr", "1e-04"},
                                                      {"optimizer.decay_steps", "7"},
                                                      {"data.tokenizer", "byte"},
                                                      {"data.train", "[text.txt]"}};
  const std::map<std::string, std::string> resolved = defaults();
  for (const Key& key : keys()) {
    const auto value = resolved.find(std::string(key.name));
    std::string literal(key.fallback.literal);
    std::erase(literal, '\'');
    if (!literal.empty()) {
      ASSERT_NE(value, resolved.end()) << key.name;
      EXPECT_EQ(value->second, literal) << key.name;
    } else if (value != resolved.end()) {
      ASSERT_TRUE(derived.contains(value->first)) << key.name << " has a default: give it as a literal";
      EXPECT_EQ(value->second, derived.at(value->first)) << key.name;
    }
  }
}

}  // namespace
}  // namespace megalith::config
