#pragma once
#include <functional>
#include <string>
#include <vector>

#include "megalith/checkpoint/choose.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"
#include "megalith/params/param_spec.h"

namespace megalith::apps {

/// The plan of a trained model, and its values in the dtype of the masters. data.vocab_dir of the plan is where the
/// files of its tokenizer are now (apps/program/vocabulary.h).
using UseModel = std::function<void(const config::RunPlan&, const ReadValues&)>;

/// Calls use() for the model of a checkpoint (found as by checkpoint_folder()). If the newest of several proves to be
/// damaged, use() has thrown; it is called again for the previous one, with a warning. Throws InputError,
/// CheckpointError, and the errors of use().
void use_saved_model(io::Fs& fs, const io::Path& given, const UseModel& use);

/// The recipe that a checkpoint was trained by. Throws InputError for a manifest without one.
config::RunConfig recipe_of(const checkpoint::CheckpointReader& reader);

/// The device of inference: `asked` ("cpu", "cuda"); if that is empty, the `usual` device if its GPU is there.
Device inference_device(const std::string& asked, Device usual);

/// The model of a recipe for inference: router decisions are not dropped, replayed or forced.
config::RunConfig model_of(const config::RunConfig& trained);

/// The folder of a checkpoint's tokenizer files. They are in the checkpoint, unless an earlier version saved it. Then
/// it is the folder at that time, or, if nothing is left there, that of the program's own files (""). Throws
/// InputError if they are damaged.
std::string vocabulary_of(io::Fs& fs, checkpoint::CheckpointReader& reader, const data::DataConfig& data);

/// Adds a damaged checkpoint, found by the path `given`, to those that are skipped. Throws InputError with the damage
/// if no other may replace it.
void pass_over(io::Fs& fs, const io::Path& given, const io::Path& folder, const std::string& damage,
               std::vector<checkpoint::Rejected>& unusable);

}  // namespace megalith::apps
