#pragma once
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/config/keys.h"
#include "megalith/config/run_plan.h"

// A recipe of a model with experts, and what is derived of it or refused.
namespace megalith::config {

inline constexpr const char* kExperts = R"(
[model]
num_layers = 4
hidden_size = 64
num_heads = 4
seq_len = 32
[moe]
num_experts = 8
[train]
steps = 10
[data]
tokenizer = "byte"
train = "corpus.txt"
)";

inline RunPlan plan_with_experts(std::vector<std::string> settings = {}) {
  return resolve(read_recipe(kExperts, "r.toml", settings));
}
inline std::string problem_with(std::vector<std::string> settings) {
  try {
    plan_with_experts(std::move(settings));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace megalith::config
