#include "megalith/capture/accounting.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "megalith/pipeline/static_slots.h"

namespace megalith::capture {
namespace {

/// Bytes of what crosses the end of a graph.
struct Boundary {
  Index with_grad = 0;  ///< their gradients are the inputs of the backward graph
  Index without = 0;
};

Boundary boundary(const nn::LayerEdges& layer, const LayerSizes& s) {
  constexpr Index kRoutingFlagBytes = 1, kPositionBytes = 4;
  const Index hidden = input_bytes(s);
  const Index shared = s.shared_experts ? hidden : 0;
  const Index routing_map = s.routed_tokens * s.num_experts * kRoutingFlagBytes;
  if (layer.ends_layer()) return {hidden, 0};
  switch (layer.end.stage) {
    case nn::ForwardStage::preprocess:  // the MoE's input, its residual and the probabilities
      return {2 * hidden + shared + s.routed_tokens * s.num_experts * s.probability_bytes, routing_map};
    case nn::ForwardStage::dispatch:  // permuted tokens and probabilities, the residual; how to permute back
      return {s.permuted_rows * (s.hidden_size * s.activation_bytes + s.probability_bytes) + hidden + shared +
                  (s.keeps_moe_residual ? hidden : 0),
              s.routed_tokens * s.top_k * kPositionBytes + routing_map};
    default:
      return {hidden, 0};
  }
}

/// A number for every size of input, so that layers with inputs of one size can share buffers.
std::vector<std::vector<int>> input_signatures(std::span<const std::vector<LayerSizes>> sizes,
                                               std::vector<Index>& bytes_of_signature) {
  std::map<Index, int> numbers;
  std::vector<std::vector<int>> signatures;
  for (const std::vector<LayerSizes>& chunk : sizes) {
    std::vector<int>& row = signatures.emplace_back();
    for (const LayerSizes& layer : chunk) {
      const auto [entry, is_first] = numbers.try_emplace(input_bytes(layer), static_cast<int>(numbers.size()));
      if (is_first) bytes_of_signature.push_back(entry->first);
      row.push_back(entry->second);
    }
  }
  return signatures;
}

}  // namespace

Index input_bytes(const LayerSizes& s) { return s.tokens * s.hidden_size * s.activation_bytes; }

bool begins_with_sum(const nn::LayerEdges& layer, bool below) {
  return layer.any() && (!layer.holds_attention() || below);
}

Index boundary_bytes(const nn::LayerEdges& layer, const LayerSizes& sizes) {
  const Boundary b = boundary(layer, sizes);
  return b.with_grad + b.without;
}

OwnedBuffers owned_buffers(const RankLayers& layers, std::span<const std::vector<LayerSizes>> sizes,
                           std::span<const std::vector<nn::LayerEdges>> edges) {
  OwnedBuffers owned;
  std::vector<Index> bytes_of_signature;
  const std::vector<std::vector<int>> signatures = input_signatures(sizes, bytes_of_signature);
  const std::vector<int> order = capture_order(layers.shape, layers.stage);
  for (const int signature : pipeline::assign_static_slots(order, signatures).signature) {
    ++owned.static_inputs;
    owned.static_input_bytes += bytes_of_signature[static_cast<std::size_t>(signature)];
  }
  std::set<Index> grad_sizes, second_sizes;
  std::map<Index, Index> alive;  // bytes of the output set with a flat index
  Index alive_bytes = 0;
  for (const CaptureStep& step : capture_steps(layers)) {
    const auto chunk = static_cast<std::size_t>(step.pass.chunk), layer = static_cast<std::size_t>(step.pass.layer);
    const LayerSizes& size = sizes[chunk][layer];
    const nn::LayerEdges& held = edges[chunk][layer];
    if (step.pass.act == pipeline::Act::forward) {
      const Boundary outputs = boundary(held, size);
      alive[step.index] = outputs.with_grad + outputs.without;
      alive_bytes += alive[step.index];
      owned.boundary_bytes = std::max(owned.boundary_bytes, alive_bytes);
      owned.unshared_input_bytes += input_bytes(size);
      if (begins_with_sum(held, layer > 0) && second_sizes.insert(input_bytes(size)).second)
        owned.second_input_bytes += input_bytes(size);
      if (grad_sizes.insert(outputs.with_grad).second) owned.output_grad_bytes += outputs.with_grad;
    }
    for (const Index index : step.released_outputs) alive_bytes -= alive.at(index);
  }
  return owned;
}

}  // namespace megalith::capture
