#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/tensor/param.h"

namespace megalith {

/// When a step writes something, compared with other things on this rank or another: what is wrong early makes what
/// comes later wrong.
struct StepOrder {
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
/// The parameters' parts of a flat tensor of numel() elements (values, gradients) or of own_numel() (masters, moments),
/// each named "`what` of PARAMETER": layer by layer, behind those that belong to no layer; gradients the other way
/// round.
void add_names(MemoryNames& names, const ParamBuffer& params, const Tensor& flat, StepOrder::Part part,
               std::string_view what);

}  // namespace megalith
