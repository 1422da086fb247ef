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

/// The plan that a model was trained by, whose data.vocab_dir is where its tokenizer's files are now
/// (apps/vocabulary.h), and its values in the masters' dtype.
using UseModel = std::function<void(const config::RunPlan&, const ReadValues&)>;

/// Calls use() for the model of a checkpoint (as checkpoint_folder() finds it). Where the newest one of several turns
/// out to be damaged use() has thrown, and is called again for the one before it, with a warning. Throws InputError,
/// CheckpointError, and what use() throws.
void use_saved_model(io::Fs& fs, const io::Path& given, const UseModel& use);

/// The recipe that a checkpoint was trained by. Throws InputError for a manifest without one.
config::RunConfig recipe_of(const checkpoint::CheckpointReader& reader);

/// Where a model answers: as `asked` ("cpu", "cuda"); if that is empty on the `usual` device, where there is a GPU for
/// that.
Device inference_device(const std::string& asked, Device usual);

/// The model of a recipe, as inference runs it: no choice of experts is dropped, replayed or forced.
config::RunConfig model_of(const config::RunConfig& trained);

/// Where the tokenizer's files of a checkpoint are: beside it, unless an earlier version saved it; then where they were
/// at that time, or, where nothing is left of them, among what ships with the program (""). Throws InputError where
/// they are damaged.
std::string vocabulary_of(io::Fs& fs, checkpoint::CheckpointReader& reader, const data::DataConfig& data);

/// Adds a damaged checkpoint, which `given` stands for, to those that are passed over. Throws InputError with the
/// damage where no other may stand in for it.
void pass_over(io::Fs& fs, const io::Path& given, const io::Path& folder, const std::string& damage,
               std::vector<checkpoint::Rejected>& unusable);

}  // namespace megalith::apps
