#pragma once
#include "megalith/config/run_plan.h"

namespace megalith::config {

/// Sets the keys of [model] and [moe] that model.preset defines, unless the recipe sets them or they have that default.
/// Keys that make another model of it become warnings of the plan. False when there is no preset of its name, which is
/// reported.
bool derive_preset(RunConfig& config, RunPlan& plan, Problems& out);

}  // namespace megalith::config
