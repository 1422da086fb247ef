#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/convert/hf_moe.h"

// OLMoE (class OlmoeForCausalLM). Its q and k have one norm over all heads; heads are hidden / heads wide; all layers
// have experts.
// Source: Muennighoff et al. 2024, arXiv:2409.02060; github.com/huggingface/transformers, models/olmoe.

namespace megalith::convert {
namespace {

model::ModelConfig read_olmoe(const HfConfig& config) {
  model::ModelConfig m = read_blocks(config, {.norm_eps = 1e-5, .seq_len = 4096});
  if (m.head_dim * m.num_heads != m.hidden_size)
    config.fail("head_dim", str("must be hidden_size / num_attention_heads, as the norms of q and k are"));
  read_experts(config, m);
  m.qk_norm = nn::QkNorm::all;
  m.biases = read_attention_bias(config, m);
  m.moe.normalize_top_k = read_norm_topk(config);
  return m;
}

nlohmann::ordered_json write_olmoe(const model::ModelConfig& m) {
  nlohmann::ordered_json config = write_blocks(m);
  config["intermediate_size"] = m.moe.ffn_hidden_size;
  config["attention_bias"] = m.biases != nn::Biases::none;
  config["clip_qkv"] = nullptr;
  write_norm_topk(m, config);
  write_experts(m, "num_experts", config);
  config["pad_token_id"] = nullptr;
  return config;
}

std::string olmoe_misfit(const model::ModelConfig& m) {
  return first_misfit(plain_experts_misfit(m),
                      {{m.qk_norm == nn::QkNorm::all, "model.qk_norm = all"},
                       {m.head_width() * m.num_heads == m.hidden_size, "model.head_dim = hidden_size / num_heads"}});
}

}  // namespace

const HfFamily kHfOlmoe = {.model_type = "olmoe",
                           .architecture = "OlmoeForCausalLM",
                           .name = "OLMoE",
                           .read_config = read_olmoe,
                           .write_config = write_olmoe,
                           .misfit = olmoe_misfit,
                           .tensors_of = moe_tensors,
                           .zeros = zero_out_biases,
                           .fused_tensors_of = fused_moe_tensors};

}  // namespace megalith::convert
