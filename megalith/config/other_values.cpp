#include "megalith/config/other_values.h"

namespace megalith::config {
namespace {

struct ValueOfAnother {
  std::string_view key, value, how;
};

// Families of Hugging Face whose blocks are Llama's with other keys.
constexpr std::string_view kMistral =
    "Mistral has Llama's blocks: model.family = \"llama\", with model.num_kv_heads for its heads of keys and values";
constexpr std::string_view kMixtral =
    "Mixtral is model.family = \"llama\" with a section [moe] whose score_before_top_k is false; model.preset = "
    "\"mixtral-8x7b\" sets all of it";
constexpr std::string_view kQwen2 = "Qwen2 has Llama's blocks: model.family = \"llama\" with model.bias = \"qkv\"";
constexpr std::string_view kQwen3 = "Qwen3 has Llama's blocks: model.family = \"llama\" with model.qk_norm = \"head\"";
constexpr std::string_view kOlmoe =
    "OLMoE is model.family = \"llama\" with model.qk_norm = \"all\" and a section [moe]; model.preset = "
    "\"olmoe-1b-7b\" sets all of it";

constexpr ValueOfAnother kValues[] = {{"model.family", "mistral", kMistral}, {"model.family", "mixtral", kMixtral},
                                      {"model.family", "qwen2", kQwen2},     {"model.family", "qwen2_moe", kQwen2},
                                      {"model.family", "qwen3", kQwen3},     {"model.family", "qwen3_moe", kQwen3},
                                      {"model.family", "olmoe", kOlmoe}};

}  // namespace

std::string_view how_to_write(std::string_view key, std::string_view value) {
  for (const ValueOfAnother& row : kValues) {
    if (row.key == key && row.value == value) return row.how;
  }
  return "";
}

}  // namespace megalith::config
