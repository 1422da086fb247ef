#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "megalith/convert/hf_blocks.h"

namespace megalith::convert {

// What the families with mixtures of experts have in common: Llama's blocks, a router, and a gated MLP for each expert.
// Source: github.com/huggingface/transformers, models/mixtral, olmoe, qwen2_moe and qwen3_moe (names and layout),
// conversion_mapping.py (which tensors save_pretrained() writes).

/// Names of a layer's tensors: "layers.2.BLOCK.experts.7.GATE.weight".
struct MoeNames {
  std::string_view block = "mlp", gate = "gate_proj", up = "up_proj", down = "down_proj";
};

/// Experts, choices of a token, and the coefficient of the load loss. The softmax goes over all experts; every layer
/// has experts. Throws InputError for one expert, or more than a router takes.
void read_experts(const HfConfig& config, model::ModelConfig& model);
/// The same keys; experts are counted under `count_key`.
void write_experts(const model::ModelConfig& model, const char* count_key, nlohmann::ordered_json& config);
/// norm_topk_prob: whether the weights of the chosen experts sum to 1.
bool read_norm_topk(const HfConfig& config);
void write_norm_topk(const model::ModelConfig& model, nlohmann::ordered_json& config);
/// Biases by attention_bias, which adds them to q, k, v and o.
nn::Biases read_attention_bias(const HfConfig& config, const model::ModelConfig& model);
/// What all of the families have and the model has not.
std::string experts_misfit(const model::ModelConfig& model);
/// The same, of a family whose layers all have experts and no shared ones.
std::string plain_experts_misfit(const model::ModelConfig& model);
/// Whether attention_bias can express the model's biases.
bool has_attention_biases(const model::ModelConfig& model);

/// All parameters of a model; nothing for parameters of another name.
std::vector<HfTensor> named_moe_tensors(const MoeNames& names, const model::ModelConfig& model, std::string_view ours,
                                        const Shape& shape);
/// With the names that all but Mixtral have.
std::vector<HfTensor> moe_tensors(const model::ModelConfig& model, std::string_view ours, const Shape& shape);
/// Where experts are fused: [E, 2F, H], the gates of an expert before its ups, and [E, H, F]. The same for all
/// families.
std::vector<HfTensor> fused_moe_tensors(const model::ModelConfig& model, std::string_view ours, const Shape& shape);

}  // namespace megalith::convert
