#pragma once
#include "megalith/checkpoint/choose.h"

namespace megalith::apps {

/// The checkpoint that a user means by a path: a step folder itself, or the newest in a folder of steps or in a run's
/// OUT (its recipe says where the steps are). With OnCorrupt::previous damaged ones, and those of `unusable`, are
/// passed over with a warning; with OnCorrupt::fail the newest is taken as it is. Throws InputError when there is no
/// such folder, CheckpointError when there is no checkpoint in it.
io::Path checkpoint_folder(io::Fs& fs, const io::Path& given, checkpoint::OnCorrupt on_corrupt,
                           std::span<const checkpoint::Rejected> unusable = {});

/// Whether the path names one checkpoint, so that no other may stand in for it.
bool names_one_checkpoint(io::Fs& fs, const io::Path& given);

}  // namespace megalith::apps
