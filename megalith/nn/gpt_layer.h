#pragma once
#include <array>
#include <string>

#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// Sizes of a GPT-2 layer.
struct GptLayerConfig {
  Index hidden_size = 0, num_heads = 0, ffn_hidden_size = 0;
  double dropout = 0, attention_dropout = 0;
};

/// A pre-norm GPT-2 layer:  a = x + drop(attention(norm1(x)));  y = a + drop(mlp(norm2(a))).  `name`: prefix of its
/// parameters. `number`: of the layer in the model; the random sites of its dropouts follow from it. SublayerStack has
/// the order of all ops.
/// Source: Radford et al. 2019 (GPT-2); Shoeybi et al. 2019, arXiv:1909.08053, section 3.
std::array<SublayerSpec, 2> gpt_layer(const std::string& name, Index number, const GptLayerConfig& config);

}  // namespace megalith::nn
