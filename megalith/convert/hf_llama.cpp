#include <nlohmann/json.hpp>

#include "megalith/convert/hf_blocks.h"

// Llama (class LlamaForCausalLM). Its attention_bias adds biases to q, k, v and o, its mlp_bias to the MLP.
// Source: github.com/huggingface/transformers, models/llama.

namespace megalith::convert {
namespace {

model::ModelConfig read_llama(const HfConfig& config) {
  model::ModelConfig m = read_blocks(config);
  config.expect_or_null("pretraining_tp", 1, "must be 1: products in slices are not built");
  const bool attention = config.flag_or("attention_bias", false), mlp = config.flag_or("mlp_bias", false);
  if (mlp && !attention)
    config.fail("mlp_bias", "must be false without attention_bias: all linear layers have biases, or q, k and v");
  if (attention) m.biases = mlp ? nn::Biases::all : nn::Biases::qkv;
  return m;
}

nlohmann::ordered_json write_llama(const model::ModelConfig& m) {
  nlohmann::ordered_json config = write_blocks(m);
  config["attention_bias"] = m.biases != nn::Biases::none;
  config["mlp_bias"] = m.biases == nn::Biases::all;
  config["pretraining_tp"] = 1;
  return config;
}

std::string llama_misfit(const model::ModelConfig& m) {
  if (m.moe.has_experts()) return std::string(kNoExperts);
  return m.qk_norm == nn::QkNorm::none ? blocks_misfit(m) : "model.qk_norm = none";
}

}  // namespace

const HfFamily kHfLlama = {.model_type = "llama",
                           .architecture = "LlamaForCausalLM",
                           .name = "Llama",
                           .read_config = read_llama,
                           .write_config = write_llama,
                           .misfit = llama_misfit,
                           .tensors_of = block_tensors,
                           .zeros = zero_out_biases};

}  // namespace megalith::convert
