#pragma once
#include <string_view>

#include "megalith/params/param_buffer.h"
#include "megalith/tensor/memory_names.h"

namespace megalith {

/// The parameters' parts of a flat tensor of numel() elements (values, gradients) or of own_numel() (masters, moments),
/// each named "`what` of PARAMETER": layer by layer, behind those that belong to no layer; gradients the other way
/// round.
void add_names(MemoryNames& names, const ParamBuffer& params, const Tensor& flat, StepOrder::Part part,
               std::string_view what);

}  // namespace megalith
