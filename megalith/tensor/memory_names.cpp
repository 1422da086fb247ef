#include "megalith/tensor/memory_names.h"

namespace megalith {

StepOrder forward_order(Index microbatch, Index layer, Index num_layers, Index op) {
  return {StepOrder::Part::activations, (microbatch * num_layers + layer) * StepOrder::kInLayer + op};
}

StepOrder backward_order(Index microbatch, Index layer, Index num_layers, Index op) {
  constexpr Index kFirst = -(Index{1} << 62);
  return {StepOrder::Part::gradients, kFirst + ((microbatch + 1) * num_layers - layer) * StepOrder::kInLayer + op};
}

void add_name(MemoryNames& names, const Tensor& tensor, const StepOrder& order, std::string name) {
  names.push_back({static_cast<const std::byte*>(tensor.raw()), tensor.bytes(), order, std::move(name)});
}

}  // namespace megalith
