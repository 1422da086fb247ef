#pragma once
#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/config/run_plan.h"

namespace megalith::config {

inline constexpr const char* kSmall = R"(
[model]
num_layers = 4
hidden_size = 64
num_heads = 4
seq_len = 32
[train]
steps = 10
global_batch = 8
[data]
tokenizer = "byte"
train = "corpus.txt"
)";

/// What resolving a recipe is refused with.
inline std::string problem_of(const std::string& recipe, std::vector<std::string> settings = {}, int ranks = 0) {
  try {
    resolve(parse_recipe(recipe, "r.toml", settings), ranks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace megalith::config
