#pragma once
#include <span>
#include <vector>

#include "megalith/capture/layer_graphs.h"
#include "megalith/capture/scopes.h"

namespace megalith::capture {

/// Sizes of one layer on one rank, from which the bytes at the edges of its graph follow.
struct LayerSizes {
  Index tokens = 0, hidden_size = 0;  ///< T, H
  Index activation_bytes = 2;         ///< of an element
  // Mixture of experts.
  Index num_experts = 0, top_k = 0;  ///< E, K
  Index permuted_rows = 0;           ///< T K, or E times the capacity when experts are padded
  Index probability_bytes = 4;
  bool shared_experts = false, keeps_moe_residual = false;
};

/// Of a layer's input: T H elements.
Index input_bytes(const LayerSizes& sizes);
/// Whether a forward graph begins with a sum: one pass adds two inputs, each of input_bytes(), and makes a norm of the
/// sum. The second is attention's output where that runs eagerly, or what the MLP of the layer below gives where layers
/// end so. `below`: whether the chunk has a layer below.
bool begins_with_sum(const Coverage& coverage, bool below);
/// Of all that a forward graph hands to the eager rest and to its backward (boundary_fields()), where those are tensors
/// of T or more rows; counts and splits, some hundred bytes, are left out.
Index boundary_bytes(const Coverage& coverage, const LayerSizes& sizes);

/// What graphs per microbatch need beside the memory of an eager step when they own their buffers and share one pool:
/// static inputs that follow the microbatches in flight, one set of output gradients, and what crosses the graphs'
/// ends. It is what other engines pay; ours records addresses that its memory plan has given out already
/// (docs/graphs.md).
struct OwnedBuffers {
  Index static_inputs = 0;  ///< buffers
  Index static_input_bytes = 0;
  Index unshared_input_bytes = 0;  ///< were there one for every captured microbatch
  Index second_input_bytes = 0;    ///< of graphs that begin with a sum: no backward reads it, one of a size serves all
  Index output_grad_bytes = 0;     ///< one set for each size that occurs
  Index boundary_bytes = 0;        ///< of the output sets that are alive at once
  bool operator==(const OwnedBuffers&) const = default;
};
/// sizes, coverages: [chunk][captured layer].
OwnedBuffers owned_buffers(const RankLayers& layers, std::span<const std::vector<LayerSizes>> sizes,
                           std::span<const std::vector<Coverage>> coverages);

}  // namespace megalith::capture
