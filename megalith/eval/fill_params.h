#pragma once
#include <functional>

#include "megalith/params/param_set.h"

namespace megalith::eval {

/// Fills `values`: host memory, the elements of the slice, of the dtype that fill_params() was given.
using ReadValues = std::function<void(const TensorSlice& slice, const Tensor& values)>;

/// Reads every parameter of a rank, without padding, and converts it from `stored`. A parameter is read in blocks.
/// Host memory: 16 MiB, unless the CPU reads its own dtype.
void fill_params(Exec& ex, const ParamSet& params, DType stored, const ReadValues& read);

}  // namespace megalith::eval
