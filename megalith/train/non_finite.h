#pragma once
#include <string>

#include "megalith/comm/world.h"
#include "megalith/config/run_plan.h"
#include "megalith/params/param_set.h"
#include "megalith/runtime/exec.h"
#include "megalith/train/host_staging.h"

namespace megalith::train {

/// Whether the gradients of a step are still in memory when it is examined.
enum class Gradients : std::uint8_t { kept, replaced };

/// A tensor with a value that is not finite.
struct NonFiniteTensor {
  bool is_parameter = false;  ///< else a gradient
  std::string text = {};      ///< "on rank 1 layers.3.mlp.up.weight = nan"; empty: there is none
};
/// The parameter with such a value that a forward pass uses first, over all ranks. If all values are finite, of
/// gradients that are kept: "on rank 1 the gradient of layers.3.mlp.up.weight = inf", of the last layer that has one,
/// because backward passes begin there. Reads all values and gradients of a rank once, on a GPU through HostStaging.
/// Throws IoError if the host has no memory for it. Collective.
NonFiniteTensor first_non_finite(comm::World& world, Exec& ex, const ParamSet& params, Gradients gradients);

/// Whether all numbers of a tensor of the device are finite. True for integers.
bool is_finite(Exec& ex, HostStaging& staging, const Tensor& tensor);

/// The ranks whose numbers were not finite: "0, 3", of many the first eight and how many more. `mine`: whether those of
/// this rank were. Collective.
std::string ranks_with_non_finite(comm::World& world, bool mine);

/// What may help a run whose loss or gradients are not finite, with parameters that have had so many updates. Before
/// the first update the learning rate has had no effect, and the initial values are to be looked at.
std::string non_finite_advice(const config::RunPlan& plan, Index updates);

}  // namespace megalith::train
