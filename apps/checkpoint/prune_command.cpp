#include <cstdio>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/choose.h"
#include "megalith/io/run_lock.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_tools.h"
#include "apps/program/command.h"
#include "apps/program/launch.h"

namespace megalith::apps {
namespace {

struct PruneOptions {
  std::string folder;
  std::string format = "text";
  int keep = 2;
  Index every = 0;
  bool dry_run = false;
};

std::string reason_of(checkpoint::Fate fate, const PruneOptions& options) {
  using enum checkpoint::Fate;
  switch (fate) {
    case newest:
      return "stays: whole, one of the newest";
    case damaged:
      return "stays: damaged, and newer than those that are kept";
    case every:
      return str("stays: --every ", options.every);
    case unread:
      return "stays: its manifest is damaged or of another version; remove the folder if it has no use";
    case foreign:
      return "stays: it holds files that are no checkpoint's";
    case removed:
      return options.dry_run ? "would be removed" : "removed";
  }
  return "";
}

/// The bytes of the files of a folder.
Index bytes_of_folder(io::Fs& fs, const io::Path& folder) {
  Index bytes = 0;
  for (const std::string& name : fs.list(folder))
    if (!fs.is_dir(folder / name) && !fs.is_link(folder / name))
      bytes += static_cast<Index>(fs.file_size(folder / name));
  return bytes;
}

std::string printed_prune(const io::Path& root, std::span<const checkpoint::PruneStep> steps, Index bytes,
                          const PruneOptions& options) {
  Index removed = 0;
  std::string text;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  constexpr const char* kFates[] = {"newest", "damaged", "every", "unread", "foreign", "removed"};
  for (const auto& [folder, fate] : steps) {
    removed += fate == checkpoint::Fate::removed ? 1 : 0;
    text += str("  ", folder.name(), ": ", reason_of(fate, options), '\n');
    list.push_back({{"name", folder.name()}, {"fate", kFates[static_cast<int>(fate)]}});
  }
  if (options.format == "json") {
    const nlohmann::ordered_json report = {
        {"folder", root.string()}, {"dry_run", options.dry_run}, {"checkpoints", list}, {"bytes", bytes}};
    return report.dump(1) + '\n';
  }
  return str(text, root.string(), ": ", removed, " of ", steps.size(), " checkpoints ",
             options.dry_run ? "would be removed, " : "removed, ", human_bytes(bytes), '\n');
}

void prune_checkpoints(const PruneOptions& options) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  if (names_one_checkpoint(*fs, options.folder)) {
    throw ConfigError(str("folder = ", options.folder,
                          ": is one checkpoint; name the folder of the step_* folders, or OUT of a run"));
  }
  const io::Path root = steps_folder(*fs, options.folder);
  std::optional<io::RunLock> lock;
  if (!options.dry_run) {
    lock = io::RunLock::take(root);
    const io::Leftovers found = io::clean_leftovers(*fs, root, *lock);
    if (found.staging + found.trash > 0)
      log::info(str("cleared what a dead job left: ", found.staging, " unfinished saves, ", found.trash,
                    " half-removed checkpoints"));
  }
  std::vector<io::StepFolder> verified;
  std::vector<checkpoint::PruneStep> steps =
      checkpoint::plan_prune(*fs, root, {.newest = options.keep, .every = options.every}, verified);
  if (verified.empty()) {
    throw CheckpointError(CheckpointError::Kind::none_valid,
                          str("[", root.string(), "] holds no whole checkpoint: nothing is removed"));
  }
  Index bytes = 0;
  for (const auto& [folder, fate] : steps)
    if (fate == checkpoint::Fate::removed) bytes += bytes_of_folder(*fs, root / folder.name());
  if (!options.dry_run) checkpoint::remove_pruned(*fs, root, steps);
  std::fputs(printed_prune(root, steps, bytes, options).c_str(), stdout);
}

}  // namespace

void add_checkpoint_prune(CLI::App& checkpoint_command) {
  const auto options = std::make_shared<PruneOptions>();
  CLI::App* const leaf = checkpoint_command.add_subcommand(
      "prune", "Remove old checkpoints. Every byte of those that stay as the newest is read first");
  leaf->add_option("folder", options->folder, "The folder of step_* folders, or OUT of a run")->required();
  leaf->add_option("--keep", options->keep, "Keep so many of the newest whole ones")
      ->check(between(1, 1'000'000))
      ->capture_default_str();
  leaf->add_option("--every", options->every, "Also keep those of steps that this divides")
      ->check(between(1, Index{1} << 53));
  leaf->add_flag("--dry-run", options->dry_run, "Print what would be removed, and change nothing");
  leaf->add_option("--format", options->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  leaf->callback([options] { prune_checkpoints(*options); });
}

}  // namespace megalith::apps
