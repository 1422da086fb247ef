#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/checkpoint/shard_io.h"
#include "megalith/config/run_plan.h"
#include "megalith/convert/hf_model.h"
#include "megalith/train/run_identity.h"

namespace megalith::train {

// What a manifest says about the run that saved it. `where` begins messages: "[resume]".

/// The recipe that a checkpoint was saved under.
config::RunConfig saved_recipe(const checkpoint::RunState& saved, std::string_view where);
/// The same, resolved.
config::RunPlan saved_plan(const checkpoint::RunState& saved, std::string_view where);

/// A hash among the manifest's texts; "" when there is none of that name.
std::string saved_hash(const checkpoint::RunState& saved, const char* name);
/// Whether a run may go on with it: both are equal, or what was saved is not known.
bool is_saved_hash(const checkpoint::RunState& saved, const char* name, std::uint64_t hash);

/// How the model of a run differs from the one that it begins with (train.init, task.init): ModelChanges::taken. Throws
/// CheckpointError with all that does not fit: keys of the model, the precision of the values, the vocabulary.
std::vector<std::string> require_fit(const config::RunPlan& plan, const DataIdentity& identity,
                                     const checkpoint::RunState& saved, const io::Path& folder);
/// The same of a Hugging Face folder.
std::vector<std::string> require_fit(const config::RunPlan& plan, const convert::HfModel& hf, const io::Path& folder);
/// The same of either, before a run writes anything.
void require_init_fits(io::Fs& fs, const config::RunPlan& plan, const DataIdentity& identity, const io::Path& init);

}  // namespace megalith::train
