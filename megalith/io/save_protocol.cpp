#include "megalith/io/save_protocol.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>

#include <sys/random.h>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/io/checksum.h"

namespace megalith::io {
namespace {

constexpr std::string_view kStep = "step_", kTemporary = ".tmp-", kTrash = ".trash-";
constexpr std::size_t kUniqueDigits = 16;

std::string unique_digits() {
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof word, 0) != static_cast<::ssize_t>(sizeof word)) {
    word = mix64(static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  }
  return hex128(0, word).substr(kUniqueDigits);
}

bool is_unique(std::string_view digits) {
  return digits.size() == kUniqueDigits && digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// The step of "step_00000100.tmp-<unique>".
std::optional<StepFolder> parse_staging(std::string_view name) {
  const std::size_t dot = name.find(kTemporary);
  if (dot == std::string_view::npos || !is_unique(name.substr(dot + kTemporary.size()))) return {};
  return parse_step_folder(name.substr(0, dot));
}

bool is_trash(std::string_view name) {
  if (!name.starts_with(kTrash)) return false;
  name.remove_prefix(kTrash.size());
  const std::size_t dash = name.rfind('-');
  return dash != std::string_view::npos && is_unique(name.substr(dash + 1)) &&
         parse_step_folder(name.substr(0, dash)).has_value();
}

bool is_checkpoint_file(std::string_view name) {
  return name == kManifestName || name.ends_with(".safetensors") ||
         std::ranges::find(kPlainFileNames, name) != kPlainFileNames.end();
}

/// Removes a folder and the files of ours in it. False, with nothing touched, when something else is in it.
bool remove_folder(Fs& fs, const Path& folder) {
  if (!foreign_files(fs, folder).empty()) return false;
  for (const std::string& name : fs.list(folder)) fs.unlink(folder / name);
  fs.remove_dir(folder);
  return true;
}

/// Makes a folder and its parents so that they survive a power cut: each new entry's parent is synced.
void make_durable_dir(Fs& fs, const Path& folder) {
  std::vector<Path> missing;
  for (Path at = folder; !at.empty() && !fs.is_dir(at); at = at.parent_path()) missing.push_back(at);
  for (auto at = missing.rbegin(); at != missing.rend(); ++at) {
    fs.make_dir(*at);
    fs.sync_dir(at->parent_path());
  }
}

void expect_covered(const RunLock& lock, const Path& folder) {
  if (lock.covers(folder)) return;
  throw InternalError(str("[clean] ", folder.string(), ": the lock on ", lock.folder().string(), " does not cover it"));
}

}  // namespace

std::string temporary_suffix() { return std::string(kTemporary) + unique_digits(); }

std::string StepFolder::name() const {
  std::string digits = std::to_string(step);
  digits.insert(0, digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return str(kStep, digits, revision > 1 ? str(".r", revision) : "");
}

std::optional<StepFolder> parse_step_folder(std::string_view name) {
  if (!name.starts_with(kStep)) return {};
  StepFolder folder;
  const char* const end = name.data() + name.size();
  const char* at = std::from_chars(name.data() + kStep.size(), end, folder.step).ptr;
  if (end - at > 2 && at[0] == '.' && at[1] == 'r') at = std::from_chars(at + 2, end, folder.revision).ptr;
  // Only what name() prints itself is ours: this refuses signs, missing or superfluous zeros, ".r1" and any rest.
  if (at != end || folder.step < 0 || folder.revision < 1 || folder.name() != name) return {};
  return folder;
}

std::vector<StepFolder> published(Fs& fs, const Path& root) {
  std::vector<StepFolder> folders;
  for (const std::string& name : fs.list(root)) {
    if (const auto folder = parse_step_folder(name)) folders.push_back(*folder);
  }
  std::sort(folders.rbegin(), folders.rend());
  return folders;
}

Path begin_save(Fs& fs, const Path& root, Index step) {
  if (step < 0) throw InternalError(str("[begin_save] step = ", step, ": must not be negative"));
  make_durable_dir(fs, root);
  Path staging = root / (StepFolder{step}.name() + temporary_suffix());
  fs.make_dir(staging);
  return staging;
}

StepFolder publish(Fs& fs, const Path& staging, std::string_view manifest) {
  const Path root = staging.parent_path();
  const auto staged = parse_staging(staging.filename().string());
  if (!staged) throw InternalError(str("[publish] folder = ", staging.string(), ": was not made by begin_save"));
  write_file(fs, staging / kManifestName, manifest);
  fs.sync_dir(staging);

  StepFolder target = *staged;
  for (const StepFolder& other : published(fs, root)) {
    if (other.step == target.step) target.revision = std::max(target.revision, other.revision + 1);
  }
  fs.rename(staging, root / target.name());
  fs.sync_dir(root);
  return target;
}

void abandon(Fs& fs, const Path& staging) {
  if (!parse_staging(staging.filename().string())) return;
  try {
    if (fs.is_dir(staging)) remove_folder(fs, staging);
  } catch (const IoError&) {  // the error that failed the save is the one to report
  }
}

std::vector<std::string> foreign_files(Fs& fs, const Path& folder) {
  if (fs.is_link(folder) || !fs.is_dir(folder)) return {folder.filename().string()};
  std::vector<std::string> names = fs.list(folder);
  std::erase_if(names, [&](const std::string& name) {
    return is_checkpoint_file(name) && (fs.is_link(folder / name) || !fs.is_dir(folder / name));
  });
  return names;
}

std::vector<std::string> remove_published(Fs& fs, const Path& root, const StepFolder& folder) {
  const Path path = root / folder.name();
  std::vector<std::string> foreign = foreign_files(fs, path);
  if (!foreign.empty()) return foreign;
  const Path trash = root / str(kTrash, folder.name(), '-', unique_digits());
  fs.rename(path, trash);
  fs.sync_dir(root);
  remove_folder(fs, trash);
  return {};
}

Leftovers clean_leftovers(Fs& fs, const Path& root, const RunLock& lock) {
  if (!lock.covers(root)) {
    throw InternalError(
        str("[clean_leftovers] ", root.string(), ": the lock on ", lock.folder().string(), " does not cover it"));
  }
  Leftovers done;
  for (const std::string& name : fs.list(root)) {
    const bool staging = parse_staging(name).has_value();
    if (!staging && !is_trash(name)) continue;
    if (!remove_folder(fs, root / name)) {
      done.kept.push_back(name);
    } else {
      ++(staging ? done.staging : done.trash);
    }
  }
  return done;
}

int clean_temporaries(Fs& fs, const Path& folder, const RunLock& lock) {
  expect_covered(lock, folder);
  int removed = 0;
  for (const std::string& name : fs.list(folder)) {
    const std::size_t dot = name.rfind(kTemporary);
    if (dot == std::string::npos || dot == 0 || !is_unique(std::string_view(name).substr(dot + kTemporary.size())))
      continue;
    if (fs.is_dir(folder / name) || fs.is_link(folder / name)) continue;
    fs.unlink(folder / name);
    ++removed;
  }
  return removed;
}

}  // namespace megalith::io
