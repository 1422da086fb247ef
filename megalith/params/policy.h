#pragma once
#include "megalith/tensor/dtype.h"

namespace megalith {

/// How a run stores numbers. Sums, statistics and losses are f32 wherever compute is not f64.
struct Policy {
  DType master = DType::f32;   ///< parameters, their gradients and moments, as the optimizer and checkpoints know them
  DType compute = DType::f32;  ///< activations, and the copy of the parameters that layers read
  bool operator==(const Policy&) const = default;
};

}  // namespace megalith
