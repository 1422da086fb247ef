#pragma once
#include "megalith/tensor/dtype.h"

namespace megalith {

/// The format of the operands of a GEMM. `e4m3`: FP8 with block scales (ops/scaled_matmul.h). nn/fp8_config.h states
/// which GEMMs of a layer have it.
enum class GemmFormat : std::uint8_t { compute, e4m3 };

/// The dtypes of a run. Sums, statistics and losses are f32 unless compute is f64.
struct Policy {
  DType master = DType::f32;   ///< parameters, their gradients and moments, for the optimizer and checkpoints
  DType compute = DType::f32;  ///< activations, and the copy of the parameters that layers read
  GemmFormat gemms = GemmFormat::compute;
  bool operator==(const Policy&) const = default;
};

}  // namespace megalith
