#pragma once
#include "megalith/config/run_plan.h"
#include "megalith/model/gpt_stage.h"

namespace megalith::train {

/// What of each layer graphs of these scopes hold: a dense layer's scopes, where both together are the whole layer.
model::LayerPieces pieces_of(const capture::ScopeSet& scopes);

/// What a run's plan asks of every rank's stage.
model::StageConfig stage_config(const config::RunPlan& plan);

}  // namespace megalith::train
