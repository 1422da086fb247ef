#pragma once
#include <cstdint>
#include <type_traits>

#include "megalith/base/types.h"

namespace megalith {

/// The values that change from step to step or from microbatch to microbatch. They lie in device memory, one StepState
/// per slot, and ops read them there. No op takes them by value, so a captured graph stays valid for every step.
struct StepState {
  std::uint64_t step = 0;          ///< the step being trained, counted from 0
  std::uint64_t first_sample = 0;  ///< global number, within the step's batch, of this microbatch's first sample
  double loss_scale = 1;           ///< factor on dloss (1 / tokens of the global batch, times the fp16 scale)
};
static_assert(std::is_trivially_copyable_v<StepState> && sizeof(StepState) == 3 * 8);  // no padding

}  // namespace megalith
