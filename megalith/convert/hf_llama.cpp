#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
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
  return m.qk_norm == nn::QkNorm::none ? blocks_misfit(m) : "model.qk_norm = none";
}

std::vector<HfTensor> llama_tensors(const model::ModelConfig& model, std::string_view ours, const Shape& shape) {
  std::vector<HfTensor> tensors = block_tensors(model, ours, shape);
  if (tensors.empty()) throw_no_place(ours, kHfLlama);
  return tensors;
}

/// A model with biases of q, k and v alone has none of o, which attention_bias brings.
std::vector<HfTensor> llama_zeros(const model::ModelConfig& m) {
  std::vector<HfTensor> tensors;
  if (m.biases != nn::Biases::qkv) return tensors;
  for (Index layer = 0; layer < m.num_layers; ++layer)
    tensors.push_back(same(str("layers.", layer, ".self_attn.o_proj.bias"), {m.hidden_size}));
  return tensors;
}

/// A buffer that older versions saved.
bool is_llama_ignored(std::string_view name) { return name.ends_with(".self_attn.rotary_emb.inv_freq"); }

}  // namespace

const HfFamily kHfLlama = {.model_type = "llama",
                           .architecture = "LlamaForCausalLM",
                           .name = "Llama",
                           .prefix = "model.",
                           .read_config = read_llama,
                           .write_config = write_llama,
                           .misfit = llama_misfit,
                           .tensors_of = llama_tensors,
                           .zeros = llama_zeros,
                           .is_ignored = is_llama_ignored};

}  // namespace megalith::convert
