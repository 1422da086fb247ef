#include "megalith/checkpoint/choose.h"

#include <algorithm>
#include <ranges>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/checkpoint/verify.h"

namespace megalith::checkpoint {
namespace {

/// Whether its manifest is one that this program can read. It cannot know the worth of a folder without one.
bool has_known_manifest(io::Fs& fs, const io::Path& folder) {
  try {
    read_manifest(fs, folder);
    return true;
  } catch (const CheckpointError&) {
  } catch (const InputError&) {
  }
  return false;
}

/// How closely to look: manifest and file sizes, or every byte too.
enum class Look { sizes, contents };

bool is_valid(io::Fs& fs, const io::Path& folder, Look look) {
  try {
    const CheckpointReader reader(fs, folder);
    return look == Look::sizes || verify(fs, folder).problems.empty();
  } catch (const InputError&) {
    return false;
  } catch (const CheckpointError&) {
    return false;
  }
}

}  // namespace

Choice find_newest_valid(io::Fs& fs, const io::Path& root, OnCorrupt on_corrupt, std::span<const Rejected> unusable) {
  std::vector<Rejected> rejected;
  for (const io::StepFolder& folder : io::published(fs, root)) {
    const auto known =
        std::find_if(unusable.begin(), unusable.end(), [&](const auto& r) { return r.folder == folder; });
    if (known != unusable.end()) {
      rejected.push_back(*known);
    } else {
      try {
        const CheckpointReader reader(fs, root / folder.name());
        return {folder, std::move(rejected)};
      } catch (const InputError& error) {  // read, and wrong: what could not be read may be good
        if (on_corrupt == OnCorrupt::fail) throw;
        rejected.push_back({folder, error.what()});
      }
    }
    if (on_corrupt == OnCorrupt::fail) throw InputError(rejected.back().reason);
  }
  std::string text = str("[", root.string(), "] there is no valid checkpoint");
  for (const Rejected& one : rejected) text += str("\n  ", one.folder.name(), ": ", one.reason);
  throw CheckpointError(CheckpointError::Kind::none_valid, text);
}

std::vector<PruneStep> plan_prune(io::Fs& fs, const io::Path& root, const KeepRule& rule,
                                  std::vector<io::StepFolder>& verified) {
  std::vector<PruneStep> steps;
  std::vector<io::StepFolder> valid;
  for (const io::StepFolder& folder : io::published(fs, root)) {
    const io::Path path = root / folder.name();
    Fate fate = Fate::removed;
    if (static_cast<int>(valid.size()) < std::max(rule.newest, 1)) {
      const auto look = std::ranges::find(verified, folder) == verified.end() ? Look::contents : Look::sizes;
      fate = is_valid(fs, path, look) ? Fate::newest : Fate::damaged;
      if (fate == Fate::newest) valid.push_back(folder);
    } else if (rule.every > 0 && folder.step % rule.every == 0) {
      fate = Fate::every;
    } else if (!has_known_manifest(fs, path)) {
      fate = Fate::unread;
    } else if (!io::foreign_files(fs, path).empty()) {
      fate = Fate::foreign;
    }
    steps.push_back({folder, fate});
  }
  verified = std::move(valid);
  return steps;
}

void remove_pruned(io::Fs& fs, const io::Path& root, std::span<PruneStep> steps) {
  for (PruneStep& step : steps | std::views::reverse) {
    if (step.fate == Fate::removed && !io::remove_published(fs, root, step.folder).empty()) step.fate = Fate::foreign;
  }
}

Pruned prune(io::Fs& fs, const io::Path& root, int keep, std::vector<io::StepFolder>& verified) {
  std::vector<PruneStep> steps = plan_prune(fs, root, {.newest = std::max(keep, 2)}, verified);
  remove_pruned(fs, root, steps);
  Pruned pruned;
  for (const auto& [folder, fate] : steps) {
    if (fate == Fate::removed) pruned.removed.push_back(folder);
    if (fate == Fate::foreign) pruned.kept_foreign.push_back(folder);
    if (fate == Fate::unread) pruned.kept_unread.push_back(folder);
  }
  return pruned;
}

}  // namespace megalith::checkpoint
