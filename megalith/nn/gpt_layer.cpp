#include "megalith/nn/gpt_layer.h"

namespace megalith::nn {
namespace {

/// Dropouts of a layer. Random site 0 is the embedding's, then come three per layer.
enum class LayerSite : std::uint8_t { attention_probabilities, after_attention, after_mlp };
std::uint32_t random_site(Index layer, LayerSite site) {
  return static_cast<std::uint32_t>(1 + 3 * layer + static_cast<Index>(site));
}

}  // namespace

std::array<SublayerSpec, 2> gpt_layer(const std::string& name, Index number, const GptLayerConfig& config) {
  const AttentionSpec attention{.num_heads = config.num_heads,
                                .head_dim = config.hidden_size / config.num_heads,
                                .dropout = config.attention_dropout,
                                .dropout_site = random_site(number, LayerSite::attention_probabilities)};
  return {{{.layer = number,
            .name = name + ".attention",
            .norm = {.name = name + ".norm1"},
            .body = attention,
            .dropout = config.dropout,
            .dropout_site = random_site(number, LayerSite::after_attention)},
           {.layer = number,
            .name = name + ".mlp",
            .norm = {.name = name + ".norm2"},
            .body = MlpSpec{.ffn_hidden_size = config.ffn_hidden_size},
            .dropout = config.dropout,
            .dropout_site = random_site(number, LayerSite::after_mlp)}}};
}

}  // namespace megalith::nn
