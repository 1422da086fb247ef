#pragma once
#include "megalith/tensor/dtype.h"

namespace megalith {

/// In which format the GEMMs of a layer's linear parts run. `e4m3`: the forward pass and the gradient of the input have
/// FP8 operands with block scales (ops/scaled_matmul.h); weight gradients are as with `compute`.
enum class GemmFormat : std::uint8_t { compute, e4m3 };

/// The dtypes of a run. Sums, statistics and losses are f32 unless compute is f64.
struct Policy {
  DType master = DType::f32;   ///< parameters, their gradients and moments, for the optimizer and checkpoints
  DType compute = DType::f32;  ///< activations, and the copy of the parameters that layers read
  GemmFormat gemms = GemmFormat::compute;
  bool operator==(const Policy&) const = default;
};

}  // namespace megalith
