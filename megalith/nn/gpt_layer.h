#pragma once
#include <array>
#include <optional>
#include <string>

#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// Sizes and parts of a layer; the defaults are GPT-2's.
struct GptLayerConfig {
  Index hidden_size = 0, num_heads = 0, ffn_hidden_size = 0;
  Index num_kv_heads = 0, head_dim = 0;  ///< 0: num_heads, hidden_size / num_heads
  double dropout = 0, attention_dropout = 0;
  NormKind norm = NormKind::layer;
  double norm_eps = 1e-5;
  PositionKind position = PositionKind::learned;
  QkNorm qk_norm = QkNorm::none;
  Activation activation = Activation::gelu;
  Biases biases = Biases::all;
  ops::AttentionMask mask = ops::AttentionMask::causal;
  std::optional<MoeSpec> experts = {};  ///< in place of the MLP
};

/// A layer:  a = x + drop(attention(norm1(x)));  y = a + drop(mlp(norm2(a))).  Or with StreamSpec::norm_placement =
/// post:  a = norm1(x + drop(attention(x)));  y = norm2(a + drop(mlp(a))).  `name`: prefix of its
/// parameters; `number`: of the model, its dropouts' random sites follow from it.
/// Sources: Radford et al. 2019 (GPT-2); Shoeybi et al. 2019, arXiv:1909.08053, section 3; Touvron et al. 2023,
/// arXiv:2302.13971, section 2.2 (Llama).
std::array<SublayerSpec, 2> gpt_layer(const std::string& name, Index number, const GptLayerConfig& config);

/// The first random site of a dropout after so many layers.
std::uint32_t first_free_site(Index num_layers);

}  // namespace megalith::nn
