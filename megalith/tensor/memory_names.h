#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/tensor/tensor.h"

namespace megalith {

/// The time at which a step writes something, compared with other things on this rank or another. An early error makes
/// later results wrong.
struct StepOrder {
  static constexpr Index kInLayer = Index{1} << 20;  ///< more than the parameters of a layer, and the ops of a chunk

  enum class Part : std::uint8_t { inputs, activations, gradients, agreement, moments, parameters, anywhere };
  Part part = Part::anywhere;
  Index within = 0;  ///< position within the part
  auto operator<=>(const StepOrder&) const = default;
};

/// The order of op number `op` of a layer, or of the chunk that begins with it. It is in the forward pass of a
/// microbatch through a model of num_layers layers. Earlier microbatches come first, whatever the schedule.
StepOrder forward_order(Index microbatch, Index layer, Index num_layers, Index op);
/// The same in the backward pass, before everything that add_names() orders of the gradients.
StepOrder backward_order(Index microbatch, Index layer, Index num_layers, Index op);

/// A range of a run's planned memory, for messages.
struct NamedMemory {
  const std::byte* begin = nullptr;
  Index bytes = 0;
  StepOrder order;
  std::string name;  ///< "gradient of layers.3.mlp.up.weight"
};
using MemoryNames = std::vector<NamedMemory>;

void add_name(MemoryNames& names, const Tensor& tensor, const StepOrder& order, std::string name);
}  // namespace megalith
