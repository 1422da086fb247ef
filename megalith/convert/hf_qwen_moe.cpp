#include <algorithm>

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/convert/hf_moe.h"

// Qwen2-MoE and Qwen3-MoE (classes Qwen2MoeForCausalLM, Qwen3MoeForCausalLM). Some layers may be dense. Qwen2-MoE has a
// shared expert with a gate and biases of q, k and v; Qwen3-MoE has norms of each head of q and k.
// Source: Yang et al. 2024, arXiv:2407.10671; Yang et al. 2025, arXiv:2505.09388; github.com/huggingface/transformers,
// models/qwen2_moe and qwen3_moe.

namespace megalith::convert {
namespace {

constexpr const char *kSparseStep = "decoder_sparse_step", *kDenseLayers = "mlp_only_layers";

/// moe.pattern, as short as it can be: the last layer of every `step` has experts, but those that are named.
std::string read_pattern(const HfConfig& config, Index num_layers) {
  const Index step = config.size_or(kSparseStep, 1);
  const std::vector<Index> dense = config.counts(kDenseLayers);
  std::string layers;
  for (Index layer = 0; layer < num_layers; ++layer)
    layers += (layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end() ? 'm' : 'd';
  if (layers.find('m') == std::string::npos)
    config.fail(dense.empty() ? kSparseStep : kDenseLayers, str("leaves none of ", num_layers, " layers with experts"));
  std::ptrdiff_t period = 1;
  while (!std::equal(layers.begin() + period, layers.end(), layers.begin())) ++period;
  return layers.substr(0, static_cast<std::size_t>(period));
}

model::ModelConfig read_qwen(const HfConfig& config) {
  model::ModelConfig m = read_blocks(config, {.seq_len = 32'768, .kv_heads_are_heads = false, .uses_window = false});
  read_experts(config, m);
  m.moe.ffn_hidden_size = config.size("moe_intermediate_size");
  m.moe.pattern = read_pattern(config, m.num_layers);
  m.moe.normalize_top_k = read_norm_topk(config);
  return m;
}

nlohmann::ordered_json write_qwen(const model::ModelConfig& m) {
  nlohmann::ordered_json config = write_blocks(m);
  write_experts(m, "num_experts", config);
  config["moe_intermediate_size"] = m.moe.ffn_hidden_size;
  write_norm_topk(m, config);
  config[kSparseStep] = 1;
  config[kDenseLayers] = nlohmann::ordered_json::array();
  for (Index layer = 0; layer < m.num_layers; ++layer) {
    if (!m.moe.is_moe_layer(layer)) config[kDenseLayers].push_back(layer);
  }
  config["use_sliding_window"] = false;
  return config;
}

model::ModelConfig read_qwen2(const HfConfig& config) {
  model::ModelConfig m = read_qwen(config);
  m.biases = config.flag_or("qkv_bias", true) ? nn::Biases::qkv : nn::Biases::none;
  m.moe.shared_ffn_hidden_size = config.size("shared_expert_intermediate_size");
  m.moe.shared_gate = true;
  return m;
}

nlohmann::ordered_json write_qwen2(const model::ModelConfig& m) {
  nlohmann::ordered_json config = write_qwen(m);
  config["qkv_bias"] = m.biases == nn::Biases::qkv;
  config["shared_expert_intermediate_size"] = m.moe.shared_ffn_hidden_size;
  return config;
}

std::string qwen2_misfit(const model::ModelConfig& m) {
  return first_misfit(experts_misfit(m), {{m.moe.shared_ffn_hidden_size > 0, "moe.shared_ffn_hidden_size"},
                                          {m.moe.shared_gate, "moe.shared_gate = true"},
                                          {m.qk_norm == nn::QkNorm::none, "model.qk_norm = none"},
                                          {m.biases != nn::Biases::all, "model.bias = qkv or none"}});
}

model::ModelConfig read_qwen3(const HfConfig& config) {
  model::ModelConfig m = read_qwen(config);
  m.qk_norm = nn::QkNorm::head;
  m.biases = read_attention_bias(config, m);
  return m;
}

nlohmann::ordered_json write_qwen3(const model::ModelConfig& m) {
  nlohmann::ordered_json config = write_qwen(m);
  config["attention_bias"] = m.biases != nn::Biases::none;
  return config;
}

std::string qwen3_misfit(const model::ModelConfig& m) {
  return first_misfit(experts_misfit(m),
                      {{m.moe.shared_ffn_hidden_size == 0, "moe.shared_ffn_hidden_size = 0"},
                       {m.qk_norm == nn::QkNorm::head, "model.qk_norm = head"},
                       {has_attention_biases(m), "model.bias = qkv or none, as dense layers have none"}});
}

}  // namespace

const HfFamily kHfQwen2Moe = {.model_type = "qwen2_moe",
                              .architecture = "Qwen2MoeForCausalLM",
                              .name = "Qwen2-MoE",
                              .read_config = read_qwen2,
                              .write_config = write_qwen2,
                              .misfit = qwen2_misfit,
                              .tensors_of = moe_tensors,
                              .fused_tensors_of = fused_moe_tensors};

const HfFamily kHfQwen3Moe = {.model_type = "qwen3_moe",
                              .architecture = "Qwen3MoeForCausalLM",
                              .name = "Qwen3-MoE",
                              .read_config = read_qwen3,
                              .write_config = write_qwen3,
                              .misfit = qwen3_misfit,
                              .tensors_of = moe_tensors,
                              .zeros = zero_out_biases,
                              .fused_tensors_of = fused_moe_tensors};

}  // namespace megalith::convert
