#pragma once
#include "megalith/config/run_config.h"
#include "megalith/io/fs.h"

#include "apps/program/recipe_options.h"

namespace megalith::apps {

/// The recipe of a fine-tuning run with the keys of its model and tokenizer, which are those of task.init. Other
/// recipes, and those without task.init, are returned as they are. task.init: a checkpoint or a Hugging Face folder.
/// `instead`: a folder of checkpoints that has the same model, may be empty. It is read where task.init is gone, and if
/// it has checkpoints in place of a Hugging Face folder. Throws InputError for a folder without a model or, of Hugging
/// Face, without a tokenizer, and CheckpointError (refused) for a model of another family, or that keys of the recipe
/// contradict.
config::RunConfig with_task_model(io::Fs& fs, config::RunConfig asked, const io::Path& instead = {});

/// The resolved recipe, with the model of task.init. Throws the errors of config::resolve(), which reads the files of
/// the tokenizer.
config::RunPlan plan_of(const RecipeOptions& options);

}  // namespace megalith::apps
