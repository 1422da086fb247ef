#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "megalith/config/run_plan.h"

#include "tests/test_data.h"

namespace megalith::config {
namespace {

/// Key to default, as the rows of docs/recipe.md have them: | `section.key` | default | meaning |.
std::map<std::string, std::string> documented() {
  constexpr std::string_view kBegin = "| `", kMiddle = "` | ";
  std::ifstream file(MEGALITH_TEST_DATA "/../../docs/recipe.md");
  std::map<std::string, std::string> found;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kBegin)) continue;
    const std::size_t key_end = line.find(kMiddle);
    if (key_end == std::string::npos) continue;
    const std::string key = line.substr(kBegin.size(), key_end - kBegin.size());
    const std::size_t value = key_end + kMiddle.size(), value_end = line.find(" |", value);
    EXPECT_NE(value_end, std::string::npos) << line;
    EXPECT_TRUE(found.emplace(key, line.substr(value, value_end - value)).second) << line;
  }
  return found;
}

/// Key to value in the resolved form of a recipe that says no more than it must.
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
  std::istringstream text(to_toml(plan.as_config()));
  std::map<std::string, std::string> found;
  std::string section;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with('[')) section = line.substr(1, line.size() - 2);
    const std::size_t equals = line.find(" = ");
    if (equals == std::string::npos) continue;
    std::string value = line.substr(equals + 3);
    std::erase(value, '\'');
    found[section + '.' + line.substr(0, equals)] = value;
  }
  return found;
}

TEST(RecipeDocs, NameEveryKeyAndNoOther) {
  RunConfig config;
  std::set<std::string> keys, rows;
  for (const Field& field : fields(config)) keys.emplace(field.key);
  for (const auto& [key, value] : documented()) rows.insert(key);
  EXPECT_EQ(rows, keys);
}

TEST(RecipeDocs, SayTheDefaults) {
  // What is no value in itself is said in words; of these a resolved recipe has what follows from the smallest one.
  const std::map<std::string, std::string> derived = {{"model.num_layers", "2"},
                                                      {"model.hidden_size", "16"},
                                                      {"model.num_heads", "1"},
                                                      {"model.ffn_hidden_size", "64"},
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
  for (const auto& [key, cell] : documented()) {
    const auto value = resolved.find(key);
    const bool is_literal = cell.starts_with('`') && cell.ends_with('`') && !cell.starts_with("`model.") &&
                            !cell.starts_with("`parallel.") && !cell.starts_with("`train.");
    if (is_literal) {
      ASSERT_NE(value, resolved.end()) << key;
      EXPECT_EQ(cell, '`' + value->second + '`') << key;
    } else if (value != resolved.end()) {
      ASSERT_TRUE(derived.contains(key)) << key << " has a default: give it in backticks";
      EXPECT_EQ(value->second, derived.at(key)) << key;
    }
  }
}

}  // namespace
}  // namespace megalith::config
