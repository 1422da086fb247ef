#pragma once
#include <span>
#include <string_view>

#include "megalith/params/param_buffer.h"
#include "megalith/tensor/memory_names.h"

namespace megalith {

/// Names the parameters' parts of a flat tensor of numel() rows (values, gradients) or of own_numel() (master memory,
/// moments): "`what` of PARAMETER". The order is layer by layer, after the parameters that belong to no layer; for
/// gradients it is reversed.
void add_names(MemoryNames& names, const ParamBuffer& params, const Tensor& flat, StepOrder::Part part,
               std::string_view what);
/// The same for a flat tensor of the elements of `ranges`.
void add_names(MemoryNames& names, const ParamBuffer& params, const Tensor& flat, StepOrder::Part part,
               std::string_view what, std::span<const OwnRange> ranges);

}  // namespace megalith
