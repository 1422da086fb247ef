#pragma once
#include <cstdint>

#include "megalith/nn/recompute_config.h"

namespace megalith::nn {

/// What a Transformer block needs to know. Sizes are global; each rank holds its share.
struct BlockConfig {
  Index hidden_size = 0, num_heads = 0, ffn_hidden_size = 0;
  double dropout = 0, attention_dropout = 0;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  double residual_init_std = 0.02;  ///< of the weights right before a residual add: init_std / sqrt(2 layers)
  std::uint64_t seed = 0;
  RecomputeConfig recompute = {};
};

}  // namespace megalith::nn
