#include <nlohmann/json.hpp>

#include "megalith/convert/hf_moe.h"

// Mixtral (class MixtralForCausalLM). All layers have experts, whose weights are a softmax over the chosen ones: the
// library divides a softmax over all experts by its sum over the chosen, which is the same.
// Source: Jiang et al. 2024, arXiv:2401.04088; github.com/huggingface/transformers, models/mixtral.

namespace megalith::convert {
namespace {

constexpr MoeNames kNames = {.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};

model::ModelConfig read_mixtral(const HfConfig& config) {
  model::ModelConfig m =
      read_blocks(config, {.rope_theta = 1e6, .norm_eps = 1e-5, .seq_len = 131'072, .kv_heads_are_heads = false});
  config.expect_or_null("router_jitter_noise", 0, "must be 0: noise on routers' inputs is not built");
  read_experts(config, m);
  m.moe.score_before_top_k = false;
  return m;
}

nlohmann::ordered_json write_mixtral(const model::ModelConfig& m) {
  nlohmann::ordered_json config = write_blocks(m);
  config["intermediate_size"] = m.moe.ffn_hidden_size;
  write_experts(m, "num_local_experts", config);
  config["router_jitter_noise"] = 0.0;
  config["sliding_window"] = nullptr;
  return config;
}

std::string mixtral_misfit(const model::ModelConfig& m) {
  return first_misfit(plain_experts_misfit(m),
                      {{!m.moe.score_before_top_k || m.moe.normalize_top_k, "moe.score_before_top_k = false"},
                       {m.qk_norm == nn::QkNorm::none, "model.qk_norm = none"},
                       {m.biases == nn::Biases::none, "model.bias = none"}});
}

std::vector<HfTensor> mixtral_tensors(const model::ModelConfig& model, std::string_view ours, const Shape& shape) {
  return named_moe_tensors(kNames, model, ours, shape);
}

}  // namespace

const HfFamily kHfMixtral = {.model_type = "mixtral",
                             .architecture = "MixtralForCausalLM",
                             .name = "Mixtral",
                             .read_config = read_mixtral,
                             .write_config = write_mixtral,
                             .misfit = mixtral_misfit,
                             .tensors_of = mixtral_tensors,
                             .fused_tensors_of = fused_moe_tensors};

}  // namespace megalith::convert
