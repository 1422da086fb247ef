#pragma once
#include "megalith/params/param_spec.h"
#include "megalith/train/run_identity.h"

namespace megalith::train {

/// The values of parameters that rules update (Update::by_rule): 0, or those that read() gives.
enum class RuleValues : std::uint8_t { zeros, read };

/// Saves a model that was trained elsewhere as step 0 of `folder`: the values of its parameters, without moments, which
/// train.init and inference take. read() is called once for each whole parameter that is learned, in the masters' dtype
/// of the plan, and with RuleValues::read also for those that rules update. Returns the state digest. Host memory: the
/// largest parameter. Whatever read() throws, and IoError, leave nothing behind.
checkpoint::Digest128 save_imported_model(const config::RunPlan& plan, const DataIdentity& identity, io::Fs& fs,
                                          const io::Path& folder, const ReadValues& read,
                                          RuleValues by_rule = RuleValues::zeros);

}  // namespace megalith::train
