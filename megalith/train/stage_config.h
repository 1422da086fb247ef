#pragma once
#include "megalith/config/run_plan.h"
#include "megalith/model/gpt_stage.h"

namespace megalith::train {

/// What a run's plan asks of every rank's stage.
model::StageConfig stage_config(const config::RunPlan& plan);

}  // namespace megalith::train
