#pragma once
#include <span>
#include <string>
#include <vector>

#include "megalith/io/fs.h"
#include "megalith/io/save_protocol.h"

namespace megalith::checkpoint {

/// What to do if a checkpoint cannot be used (checkpoint.on_corrupt).
enum class OnCorrupt { fail, previous };

struct Rejected {
  io::StepFolder folder;
  std::string reason;
};

struct Choice {
  io::StepFolder folder;
  std::vector<Rejected> rejected;  ///< newer ones that cannot be used; report them, because progress is lost
};

/// The newest checkpoint in `root` with a valid manifest and the right file sizes. `unusable` are folders whose
/// contents failed when they were read: they are rejected without another check. With OnCorrupt::fail the first
/// rejected one throws its InputError. Throws CheckpointError: refused, if the newest remaining one was written by
/// another version; none_valid, if no folder remains, with the reason of each rejection. A folder that cannot be read
/// is not damaged: IoError.
Choice find_newest_valid(io::Fs& fs, const io::Path& root, OnCorrupt on_corrupt,
                         std::span<const Rejected> unusable = {});

/// The result of prune().
struct Pruned {
  std::vector<io::StepFolder> removed;
  std::vector<io::StepFolder> kept_foreign;  ///< not removed, because they hold foreign files
  std::vector<io::StepFolder> kept_unread;   ///< not removed: of another version, or without a manifest to read
};
/// Removes old checkpoints, so that `keep` (at least 2) valid ones stay. A folder is removed only if every byte of
/// `keep` newer ones was read and found right: in this call, or in an earlier one, which noted them in `verified`. For
/// the latter, manifest and file sizes are checked again. A folder that is not valid does not count, and is not removed
/// while it is newer than those.
Pruned prune(io::Fs& fs, const io::Path& root, int keep, std::vector<io::StepFolder>& verified);

}  // namespace megalith::checkpoint
