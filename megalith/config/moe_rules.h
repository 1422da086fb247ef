#pragma once
#include "megalith/config/run_plan.h"

namespace megalith::config {

/// Sets what [moe] leaves out where there are experts; else reports its keys, parallel.ep and parallel.etp.
void derive_moe(RunConfig& config, Problems& out);

/// Rules that tie keys of [moe] to each other, to the model and to the grid.
void check_moe(const RunPlan& plan, Problems& out);

}  // namespace megalith::config
