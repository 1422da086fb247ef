#include "megalith/nn/gpt_layer.h"

namespace megalith::nn {
namespace {

/// Dropouts of a layer. Random site 0 is the embedding's, then come three per layer.
enum class LayerSite : std::uint8_t { attention_probabilities, after_attention, after_mlp };
std::uint32_t random_site(Index layer, LayerSite site) {
  return first_free_site(layer) + static_cast<std::uint32_t>(site);
}

SublayerBody after_attention(const GptLayerConfig& config) {
  if (config.experts) return *config.experts;
  return MlpSpec{config.ffn_hidden_size, config.activation, config.biases};
}

}  // namespace

std::uint32_t first_free_site(Index num_layers) { return static_cast<std::uint32_t>(1 + 3 * num_layers); }

std::array<SublayerSpec, 2> gpt_layer(const std::string& name, Index number, const GptLayerConfig& config) {
  const AttentionSpec attention{
      .num_heads = config.num_heads,
      .num_kv_heads = config.num_kv_heads == 0 ? config.num_heads : config.num_kv_heads,
      .head_dim = config.head_dim == 0 ? config.hidden_size / config.num_heads : config.head_dim,
      .position = config.position,
      .qk_norm = config.qk_norm,
      .qk_norm_eps = config.norm_eps,
      .biases = config.biases,
      .dropout = config.attention_dropout,
      .dropout_site = random_site(number, LayerSite::attention_probabilities),
      .mask = config.mask};
  return {{{.layer = number,
            .name = name + ".attention",
            .norm = {name + ".norm1", config.norm_eps, config.norm},
            .body = attention,
            .dropout = config.dropout,
            .dropout_site = random_site(number, LayerSite::after_attention)},
           {.layer = number,
            .name = name + (config.experts ? ".moe" : ".mlp"),
            .norm = {name + ".norm2", config.norm_eps, config.norm},
            .body = after_attention(config),
            .dropout = config.dropout,
            .dropout_site = random_site(number, LayerSite::after_mlp)}}};
}

}  // namespace megalith::nn
