#pragma once
#include <string>

#include "megalith/comm/world.h"
#include "megalith/params/param_set.h"
#include "megalith/runtime/exec.h"

namespace megalith::train {

/// Whether the gradients of a step are still in memory when it is examined.
enum class Gradients : std::uint8_t { kept, replaced };

/// Where the numbers of a step were not finite: "on rank 1 layers.3.mlp.up.weight = nan", the parameter with such a
/// value that a forward pass uses first, over all ranks. If all values are finite, of gradients that are kept: "on rank
/// 1 the gradient of layers.3.mlp.up.weight = inf", of the last layer that has one, because backward passes begin
/// there. Empty: there is none. Reads all values and gradients of a rank once, on a GPU through HostStaging. Throws
/// IoError if the host has no memory for it. Collective.
std::string non_finite_parameter(comm::World& world, Exec& ex, const ParamSet& params, Gradients gradients);

/// The ranks whose numbers were not finite: "0, 3". `mine`: whether those of this rank were. Collective.
std::string ranks_with_non_finite(comm::World& world, bool mine);

}  // namespace megalith::train
