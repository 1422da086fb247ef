#pragma once
#include <span>
#include <vector>

#include "megalith/capture/layer_graphs.h"
#include "megalith/capture/scopes.h"

namespace megalith::capture {

/// Sizes of one layer on one rank, from which the bytes at the edges of its graph follow.
struct LayerSizes {
  Index tokens = 0, hidden_size = 0;  ///< T, H: rows of the residual stream
  Index activation_bytes = 2;         ///< per element
  // Mixture of experts.
  Index routed_tokens = 0;           ///< those of the rows that this rank routes
  Index num_experts = 0, top_k = 0;  ///< E, K
  Index permuted_rows = 0;           ///< T K, or E times the capacity if experts are padded
  Index probability_bytes = 4;
  bool shared_experts = false, keeps_moe_residual = false;
  bool operator==(const LayerSizes&) const = default;
};

/// Bytes of a layer's input: T H elements.
Index input_bytes(const LayerSizes& sizes);
/// Whether a forward graph begins with a sum: one pass adds two inputs of input_bytes() each, and computes a norm of
/// the sum (nn::Seam). The second input is the output of attention, if that runs eagerly, or the MLP output of the
/// layer below. `below`: whether the chunk has a layer below.
bool begins_with_sum(const nn::LayerEdges& layer, bool below);
/// Bytes that a forward graph passes to the eager rest of the layer and to its backward (boundary_fields()), for
/// tensors of T or more rows. Counts and splits, some hundred bytes, are left out.
Index boundary_bytes(const nn::LayerEdges& layer, const LayerSizes& sizes);

/// The memory that graphs per microbatch need in addition to an eager step if they own their buffers and share one
/// pool: static inputs for the microbatches in flight, one set of output gradients, and the tensors that cross the ends
/// of graphs. Other engines need this memory. Our graphs record addresses of the memory plan (docs/graphs.md).
struct OwnedBuffers {
  Index static_inputs = 0;  ///< buffers
  Index static_input_bytes = 0;
  Index unshared_input_bytes = 0;  ///< with one input per captured microbatch
  Index second_input_bytes = 0;    ///< of graphs that begin with a sum: no backward reads it, so one per size serves
                                   ///< all
  Index output_grad_bytes = 0;     ///< one set for each size that occurs
  Index boundary_bytes = 0;        ///< of the output sets that are alive at the same time
  bool operator==(const OwnedBuffers&) const = default;
};
/// sizes, edges: [chunk][captured layer].
OwnedBuffers owned_buffers(const RankLayers& layers, std::span<const std::vector<LayerSizes>> sizes,
                           std::span<const std::vector<nn::LayerEdges>> edges);

}  // namespace megalith::capture
