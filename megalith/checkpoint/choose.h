#pragma once
#include <cstdint>
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

/// Which checkpoints stay when old ones are removed.
struct KeepRule {
  int newest = 2;   ///< so many valid ones, at least 1
  Index every = 0;  ///< also those of the steps that this divides; 0: none
};
/// What a KeepRule does with a checkpoint, and why. The order is that of the questions.
enum class Fate : std::uint8_t {
  newest,   ///< stays: every byte was read and is right, and it is one of the newest
  damaged,  ///< stays: it is newer than the last of these, and not valid
  every,    ///< stays: of a step that KeepRule::every divides
  unread,   ///< stays: of another version, or without a manifest to read
  foreign,  ///< stays: it holds foreign files
  removed
};
struct PruneStep {
  io::StepFolder folder;
  Fate fate = Fate::removed;
};
/// The fate of every checkpoint in `root`, newest first. Changes nothing. A folder is removed only if every byte of
/// rule.newest newer ones was read and found right: in this call, or in an earlier one, which noted them in `verified`.
/// For the latter, manifest and file sizes are checked again.
std::vector<PruneStep> plan_prune(io::Fs& fs, const io::Path& root, const KeepRule& rule,
                                  std::vector<io::StepFolder>& verified);
/// Removes those whose fate it is (io::remove_published), oldest first. Those to which foreign files have come since
/// stay, and get that fate.
void remove_pruned(io::Fs& fs, const io::Path& root, std::span<PruneStep> steps);

/// The result of prune().
struct Pruned {
  std::vector<io::StepFolder> removed;
  std::vector<io::StepFolder> kept_foreign;  ///< Fate::foreign
  std::vector<io::StepFolder> kept_unread;   ///< Fate::unread
};
/// Removes old checkpoints, so that `keep` (at least 2) valid ones stay: plan_prune() and remove_pruned().
Pruned prune(io::Fs& fs, const io::Path& root, int keep, std::vector<io::StepFolder>& verified);

}  // namespace megalith::checkpoint
