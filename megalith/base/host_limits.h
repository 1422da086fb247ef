#pragma once
#include <filesystem>
#include <optional>
#include <string_view>

#include "megalith/base/types.h"

namespace megalith {

/// What this process may take of its host. Nothing where the system does not say.
struct HostLimits {
  /// Bytes that may still be taken: what the system has available or, where that is less, what the limits of control
  /// groups leave, or the limit on the process's addresses (`ulimit -v`). Files that are kept in memory count as free.
  std::optional<Index> memory_available;
  /// Bytes: the least limit that a control group sets, whatever of it is in use. Nothing where none sets one.
  std::optional<Index> memory_limit;
  /// Processors' worth of time that control groups grant, as 1.5; nothing where they grant all. Which processors the
  /// process may run on is another matter (allowed_cores()).
  std::optional<double> cpu_quota;
};

/// Of the process's control groups, of versions 1 and 2, and of those that hold them. Reads a few files of /proc and
/// /sys, which takes well under a millisecond. `root`: of the file system; tests name another.
HostLimits host_limits(const std::filesystem::path& root = "/");

/// Throws IoError where `limits` leave less than `bytes` for `what` ("the model"): a process that takes what its
/// control group does not grant is killed without a word. `fix` is how to ask for less.
void require_memory(const HostLimits& limits, Index bytes, std::string_view what, std::string_view fix);

}  // namespace megalith
