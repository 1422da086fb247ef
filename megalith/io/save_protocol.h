#pragma once
#include <array>
#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"
#include "megalith/io/run_lock.h"

namespace megalith::io {

// How a checkpoint appears whole or not at all (docs/reliability.md, rule 2):
//   begin_save: step_00000100.tmp-<unique>/ -> every rank writes and syncs its shards there -> publish: MANIFEST last,
//   sync, sync the folder, rename to step_00000100, sync the parent. Only then may the save be acknowledged.
// A published folder is never written into: a second save of a step becomes step_00000100.r2.

/// "step_00000100", or "step_00000100.r2" when revision is 2. Newer compares greater.
struct StepFolder {
  Index step = 0;
  int revision = 1;
  std::string name() const;
  auto operator<=>(const StepFolder&) const = default;
};
/// Nothing unless `name` is exactly what name() prints for some step.
std::optional<StepFolder> parse_step_folder(std::string_view name);

/// The published folders in `root`, newest first; empty when root is absent. Their contents are not read.
std::vector<StepFolder> published(Fs& fs, const Path& root);

/// ".tmp-" and 16 random hex digits: marks what is not published.
std::string temporary_suffix();

inline constexpr std::string_view kManifestName = "MANIFEST";
/// Files of a checkpoint that hold no tensors: the vocabulary.
inline constexpr std::array<std::string_view, 5> kPlainFileNames = {"merges.txt", "tokenizer.json", "tokenizer.model",
                                                                    "vocab.json", "vocab.txt"};

/// Makes root (durably) and an empty folder in it for the shards of a save. Called by one rank. Returns the folder.
Path begin_save(Fs& fs, const Path& root, Index step);
/// Writes MANIFEST and publishes. Called by one rank after every rank has synced its shards. On IoError the save has
/// failed: call abandon() and go on with the earlier checkpoints.
StepFolder publish(Fs& fs, const Path& staging, std::string_view manifest);
/// Removes what a failed save left, as far as that works; never throws IoError. A restart cleans the rest.
void abandon(Fs& fs, const Path& staging);

/// The names in a published folder that no save makes; the folder's own name if it is a link or no folder.
std::vector<std::string> foreign_files(Fs& fs, const Path& folder);
/// Takes a checkpoint away: renamed to .trash-*, synced, then unlinked. A folder with files that no checkpoint has, or
/// a link, is left alone: returns their names (empty: it was removed).
std::vector<std::string> remove_published(Fs& fs, const Path& root, const StepFolder& folder);

/// What clean_leftovers did.
struct Leftovers {
  int staging = 0;                ///< unpublished saves removed
  int trash = 0;                  ///< half-removed checkpoints removed
  std::vector<std::string> kept;  ///< folders of ours left alone, since somebody else's files are in them
};
/// Removes .tmp- and .trash- folders of dead jobs from `root`. The lock is the proof that nobody writes there: throws
/// InternalError when it does not cover root. Files whose names are not ours are never touched.
Leftovers clean_leftovers(Fs& fs, const Path& root, const RunLock& lock);

/// Removes NAME.tmp-<unique> files in a folder: what publish_file() of dead jobs left. Returns how many. Folders and
/// links are not touched. The lock as above.
int clean_temporaries(Fs& fs, const Path& folder, const RunLock& lock);

}  // namespace megalith::io
