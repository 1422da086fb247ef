#pragma once
#include <functional>

#include "megalith/config/run_plan.h"
#include "megalith/eval/whole_model.h"
#include "megalith/io/fs.h"

namespace megalith::apps {

/// Loads the model of a checkpoint (as checkpoint_folder() finds it) on one rank and calls use(). Where the newest one
/// of several is damaged the one before it is used, with a warning. Throws InputError, CheckpointError.
void use_saved_model(io::Fs& fs, const io::Path& given,
                     const std::function<void(eval::WholeModel&, const config::RunPlan&)>& use);

}  // namespace megalith::apps
