#include "megalith/nn/gpt_layer.h"

#include "megalith/nn/mlp.h"
#include "megalith/nn/self_attention.h"

namespace megalith::nn {
namespace {

/// Dropouts of a layer. Random site 0 is the embedding's, then come three per layer.
enum class LayerSite : std::uint8_t { attention_probabilities, after_attention, after_mlp };
std::uint32_t random_site(Index layer, LayerSite site) {
  return static_cast<std::uint32_t>(1 + 3 * layer + static_cast<Index>(site));
}

}  // namespace

void declare_gpt_layer(std::vector<ParamSpec>& specs, const std::string& name, const BlockConfig& config,
                       const TensorParallel& tp) {
  LayerNorm::declare(specs, name + ".norm1", config.hidden_size, tp);
  SelfAttention::declare(specs, name + ".attention", config, tp.group());
  LayerNorm::declare(specs, name + ".norm2", config.hidden_size, tp);
  Mlp::declare(specs, name + ".mlp", config, tp.group());
}

void add_gpt_layer(std::vector<SublayerStack::Entry>& entries, const LayerPlace& place, const BlockConfig& config,
                   const TensorParallel& tp, ParamSet& params) {
  const auto& [name, layer, capture] = place;
  const auto dropout = [&](LayerSite site) {
    return DropoutSite{config.dropout, config.seed, random_site(layer, site)};
  };
  entries.push_back(
      {.layer = layer,
       .norm = LayerNorm::of(params, name + ".norm1", config.norm_eps),
       .sublayer = std::make_unique<SelfAttention>(name + ".attention", config, tp, params,
                                                   random_site(layer, LayerSite::attention_probabilities)),
       .dropout = dropout(LayerSite::after_attention),
       .captured = capture.attention});
  entries.push_back({.layer = layer,
                     .norm = LayerNorm::of(params, name + ".norm2", config.norm_eps),
                     .sublayer = std::make_unique<Mlp>(name + ".mlp", config, tp, params),
                     .dropout = dropout(LayerSite::after_mlp),
                     .captured = capture.mlp});
}

}  // namespace megalith::nn
