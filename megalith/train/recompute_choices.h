#pragma once
#include <functional>
#include <span>
#include <string>

#include "megalith/config/run_plan.h"
#include "megalith/tensor/memory.h"

namespace megalith::train {

/// A recomputation to suggest for a run that does not fit.
struct RecomputeChoice {
  std::string name;  ///< "gelu, norms"
  nn::RecomputeConfig config;
  /// "recompute.mode = selective, recompute.modules = [gelu, norms]"
  std::string settings() const;
};
/// Ordered by the FLOPs that backward passes recompute, from none to those of whole layers. Without gelu where the
/// model has no MLP whose activation is kept: experts keep none. With dispatch where ranks exchange rows of experts.
std::span<const RecomputeChoice> recompute_choices(const config::RunPlan& plan);
/// The plan with another recomputation.
config::RunPlan with_recompute(config::RunPlan plan, const nn::RecomputeConfig& recompute);

/// The bytes of a rank, if the run had another plan.
using PlannedBytes = std::function<BytesByOwner(const config::RunPlan&)>;

/// ", or SETTINGS, which takes N less of this rank": of the choices with which the run fits, the one that recomputes
/// the fewest FLOPs; "" if there is none. `bytes`: of the rank with `plan`; `planned`: with other plans. `fits(less)`:
/// whether the run fits with so many bytes less on this rank. It may be collective, because all ranks call it in the
/// same order.
std::string recompute_that_fits(const config::RunPlan& plan, const BytesByOwner& bytes, const PlannedBytes& planned,
                                const std::function<bool(Index less)>& fits);

}  // namespace megalith::train
