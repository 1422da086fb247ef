#pragma once
#include "megalith/config/run_plan.h"

namespace megalith::config {

/// Sets what model.preset says of [model] and [moe], where no key beside it says otherwise and the defaults differ.
/// Keys that make another model of it become warnings of the plan. False when there is no preset of its name, which is
/// reported.
bool derive_preset(RunConfig& config, RunPlan& plan, Problems& out);

}  // namespace megalith::config
