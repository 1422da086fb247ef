#pragma once
#include <filesystem>
#include <optional>
#include <string_view>

#include "megalith/base/types.h"

namespace megalith {

/// What this process may take of its host. Nothing where the system does not report it.
struct HostLimits {
  /// Bytes that may still be taken: the least of what the system, the limits of control groups, and the limit on the
  /// process's addresses (`ulimit -v`) leave. Files that are kept in memory count as free.
  std::optional<Index> memory_available;
  /// Bytes: the least limit that a control group sets, whatever of it is in use. Nothing where none sets one.
  std::optional<Index> memory_limit;
  /// Processors' worth of time that control groups grant, as 1.5; nothing where they grant all. Which processors the
  /// process may run on is another matter (allowed_cores()).
  std::optional<double> cpu_quota;
};

/// The limits of the process: its control groups of versions 1 and 2, and those that hold them. Reads a few files of
/// /proc and /sys, which takes well under a millisecond. `root`: of the file system; tests name another.
HostLimits host_limits(const std::filesystem::path& root = "/");

/// Throws IoError where `limits` leave less than `bytes` for `what` ("the model"): a process that takes what its
/// control group does not grant is killed without a word. `fix` is how to ask for less.
void require_memory(const HostLimits& limits, Index bytes, std::string_view what, std::string_view fix);

}  // namespace megalith
