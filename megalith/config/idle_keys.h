#pragma once
#include <string>
#include <vector>

#include "megalith/config/run_plan.h"

namespace megalith::config {

/// A warning for each key that a recipe gives, and that nothing reads because of another key.
std::vector<std::string> idle_keys(RunConfig asked, const RunPlan& plan);

}  // namespace megalith::config
