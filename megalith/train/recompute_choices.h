#pragma once
#include <functional>
#include <span>
#include <string>

#include "megalith/config/run_plan.h"
#include "megalith/tensor/memory.h"

namespace megalith::train {

/// A recomputation that a run which does not fit may be given.
struct RecomputeChoice {
  std::string name;  ///< "gelu, norms"
  nn::RecomputeConfig config;
  /// "recompute.mode = selective, recompute.modules = [gelu, norms]"
  std::string settings() const;
};
/// By the FLOPs that backward passes repeat, from none to those of whole layers.
std::span<const RecomputeChoice> recompute_choices();
/// The plan with another recomputation.
config::RunPlan with_recompute(config::RunPlan plan, const nn::RecomputeConfig& recompute);

/// What Engine plans for a rank. Needs no GPU and no other ranks.
BytesByOwner planned_bytes(const config::RunPlan& plan, int rank);

/// ", or SETTINGS, which takes N less of this rank": the choice that repeats the fewest FLOPs of those with which the
/// run fits; "" where there is none. `fits(less)`: whether it does with so many bytes less on this rank; may be
/// collective, as all ranks ask in the same order.
std::string recompute_that_fits(const config::RunPlan& plan, int rank, const std::function<bool(Index less)>& fits);

}  // namespace megalith::train
