#pragma once
#include <span>
#include <string>
#include <vector>

#include "megalith/io/fs.h"
#include "megalith/io/save_protocol.h"

namespace megalith::checkpoint {

/// What to do about a checkpoint that cannot be used (checkpoint.on_corrupt).
enum class OnCorrupt { fail, previous };

struct Rejected {
  io::StepFolder folder;
  std::string reason;
};

struct Choice {
  io::StepFolder folder;
  std::vector<Rejected> rejected;  ///< newer ones that cannot be used. Report them: progress is lost.
};

/// The newest checkpoint in `root` whose manifest and file sizes are right. `unusable` are folders that failed when
/// their contents were read: they are rejected without another look. With OnCorrupt::fail the first one rejected throws
/// its InputError. Throws CheckpointError: refused, where the newest that is left was written by another version;
/// none_valid when no folder is left, listing why each was rejected. What cannot be read is not damaged: IoError.
Choice find_newest_valid(io::Fs& fs, const io::Path& root, OnCorrupt on_corrupt,
                         std::span<const Rejected> unusable = {});

/// What prune did.
struct Pruned {
  std::vector<io::StepFolder> removed;
  std::vector<io::StepFolder> kept_foreign;  ///< would have gone, but hold files that are not ours
  std::vector<io::StepFolder> kept_unread;   ///< would have gone, but were written by another version
};
/// Removes old checkpoints, so that `keep` (at least 2) valid ones stay. Nothing goes unless every byte of `keep` newer
/// ones was read and found right: just now, or in an earlier call, which noted them in `verified`; of those manifest
/// and file sizes are looked at again. One that is not valid is neither counted nor removed while it is newer than
/// those.
Pruned prune(io::Fs& fs, const io::Path& root, int keep, std::vector<io::StepFolder>& verified);

}  // namespace megalith::checkpoint
