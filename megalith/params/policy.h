#pragma once
#include "megalith/tensor/dtype.h"

namespace megalith {

/// The dtypes of a run. Sums, statistics and losses are f32 unless compute is f64.
struct Policy {
  DType master = DType::f32;   ///< parameters, their gradients and moments, for the optimizer and checkpoints
  DType compute = DType::f32;  ///< activations, and the copy of the parameters that layers read
  bool operator==(const Policy&) const = default;
};

}  // namespace megalith
