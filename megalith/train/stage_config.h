#pragma once
#include "megalith/config/run_plan.h"
#include "megalith/model/stage.h"

namespace megalith::train {

/// The configuration of every rank's stage, from the run's plan.
model::StageConfig stage_config(const config::RunPlan& plan);

}  // namespace megalith::train
