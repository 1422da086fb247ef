#pragma once
#include "megalith/checkpoint/choose.h"

namespace megalith::apps {

/// The folder of step folders for a path from the user: OUT of a run, whose recipe may name it, or that folder itself.
/// Throws InputError if there is no such folder, CheckpointError if it has no checkpoint.
io::Path steps_folder(io::Fs& fs, const io::Path& given);

/// The checkpoint for a path from the user: a step folder itself, or the newest one in a folder of steps, or in the OUT
/// of a run, whose recipe names the folder of steps. With OnCorrupt::previous, damaged checkpoints and those of
/// `unusable` are skipped with a warning. With OnCorrupt::fail the newest is returned as it is. Throws InputError if
/// there is no such folder, CheckpointError if it has no checkpoint.
io::Path checkpoint_folder(io::Fs& fs, const io::Path& given, checkpoint::OnCorrupt on_corrupt,
                           std::span<const checkpoint::Rejected> unusable = {});

/// Whether the path names one checkpoint, so that no other may replace it.
bool names_one_checkpoint(io::Fs& fs, const io::Path& given);

}  // namespace megalith::apps
