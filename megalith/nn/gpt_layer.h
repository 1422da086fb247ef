#pragma once
#include <string>
#include <vector>

#include "megalith/nn/block_config.h"
#include "megalith/nn/sublayer_stack.h"

namespace megalith::nn {

/// Which sublayers of a layer run from graphs; both together are one segment.
struct LayerCapture {
  bool attention = false, mlp = false;
  bool any() const { return attention || mlp; }
};

/// A layer as a part of a model.
struct LayerPlace {
  std::string name;  ///< prefix of its parameters
  Index number = 0;  ///< of the model; its dropouts' random sites follow from it
  LayerCapture capture = {};
};

/// A pre-norm GPT-2 layer:  a = x + drop(attention(norm1(x)));  y = a + drop(mlp(norm2(a))).
/// Source: Radford et al. 2019 (GPT-2); Shoeybi et al. 2019, arXiv:1909.08053, section 3.

/// Appends its parameters in the order of its ops: norm1, attention, norm2, mlp.
void declare_gpt_layer(std::vector<ParamSpec>& specs, const std::string& name, const BlockConfig& config,
                       const TensorParallel& tp);
/// Appends its two sublayers, with parameters that were declared under the same name.
void add_gpt_layer(std::vector<SublayerStack::Entry>& entries, const LayerPlace& place, const BlockConfig& config,
                   const TensorParallel& tp, ParamSet& params);

}  // namespace megalith::nn
