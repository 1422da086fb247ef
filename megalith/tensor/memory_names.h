#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/tensor/tensor.h"

namespace megalith {

/// When a step writes something, compared with other things on this rank or another: what is wrong early makes what
/// comes later wrong.
struct StepOrder {
  static constexpr Index kInLayer = Index{1} << 20;  ///< more than a layer has parameters, and a chunk ops

  enum class Part : std::uint8_t { inputs, activations, gradients, agreement, moments, parameters, anywhere };
  Part part = Part::anywhere;
  Index within = 0;  ///< the part
  auto operator<=>(const StepOrder&) const = default;
};

/// Of op number `op` of a layer or of the chunk that begins with it, in the forward pass of a microbatch through a
/// model of so many layers: earlier microbatches first, whatever the schedule.
StepOrder forward_order(Index microbatch, Index layer, Index num_layers, Index op);
/// The same in the backward pass, before all that add_names() orders of the gradients.
StepOrder backward_order(Index microbatch, Index layer, Index num_layers, Index op);

/// A stretch of a run's planned memory, for messages.
struct NamedMemory {
  const std::byte* begin = nullptr;
  Index bytes = 0;
  StepOrder order;
  std::string name;  ///< "gradient of layers.3.mlp.up.weight"
};
using MemoryNames = std::vector<NamedMemory>;

void add_name(MemoryNames& names, const Tensor& tensor, const StepOrder& order, std::string name);
}  // namespace megalith
