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

  /// Whether layers read a copy of the masters.
  bool has_copy() const { return master != compute; }
  /// Whether masters are kept as this copy and what it lacks (MasterValues), and not beside it.
  bool splits_masters() const { return master == DType::f32 && compute == DType::bf16; }
  bool operator==(const Policy&) const = default;
};

}  // namespace megalith
