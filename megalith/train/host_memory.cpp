#include "megalith/train/host_memory.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/host.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/comm/gather_values.h"

namespace megalith::train {
namespace {

using Path = std::filesystem::path;

std::optional<Index> number_in(const Path& file) {
  std::ifstream in(file);
  if (Index number = 0; in >> number) return number;
  return std::nullopt;
}

/// Of lines "name number ...".
std::optional<Index> entry_of(const Path& file, std::string_view name) {
  std::ifstream in(file);
  std::string key;
  for (Index number = 0; in >> key >> number; in.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    if (key == name) return number;
  }
  return std::nullopt;
}

/// The names that a version of Linux's control groups uses.
struct GroupFiles {
  const char *mount, *limit, *used;
  std::array<const char*, 2> cached;  ///< entries of memory.stat
};
constexpr GroupFiles kUnified = {"sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};
constexpr GroupFiles kOfMemory = {"sys/fs/cgroup/memory",
                                  "memory.limit_in_bytes",
                                  "memory.usage_in_bytes",
                                  {"total_inactive_file", "total_active_file"}};

std::optional<Index> left_in_group(const Path& folder, const GroupFiles& files) {
  const std::optional<Index> limit = number_in(folder / files.limit), used = number_in(folder / files.used);
  if (!limit || !used) return std::nullopt;
  Index left = *limit - *used;
  for (const char* entry : files.cached) left += entry_of(folder / "memory.stat", entry).value_or(0);
  return std::max<Index>(left, 0);
}

/// Of the process's group and those that hold it: `path` as /proc/self/cgroup has it, which need not exist where only a
/// part of the hierarchy is mounted.
std::optional<Index> left_in_groups(const Path& root, const GroupFiles& files, const std::string& path) {
  std::optional<Index> least;
  for (Path group = Path(path).relative_path();; group = group.parent_path()) {
    const std::optional<Index> left = left_in_group(root / files.mount / group, files);
    if (left) least = std::min(least.value_or(*left), *left);
    if (group.empty()) return least;
  }
}

}  // namespace

std::optional<Index> available_host_memory(const Path& root) {
  std::optional<Index> least;
  const auto limit_to = [&](std::optional<Index> bytes) {
    if (bytes) least = std::min(least.value_or(*bytes), *bytes);
  };
  if (const std::optional<Index> kib = entry_of(root / "proc/meminfo", "MemAvailable:")) limit_to(*kib * 1024);
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "number:controllers:path"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) limit_to(left_in_groups(root, kUnified, path));
    if (controllers == "memory") limit_to(left_in_groups(root, kOfMemory, path));
  }
  return least;
}

void require_host_memory(std::span<const HostShare> ranks, const std::string& what, const std::string& fix) {
  for (std::size_t first = 0; first < ranks.size(); ++first) {
    Index needed = 0, available = std::numeric_limits<Index>::max(), count = 0;
    for (const HostShare& rank : ranks) {
      if (rank.host != ranks[first].host) continue;
      needed += rank.needed;
      available = std::min(available, rank.available);
      ++count;
    }
    if (needed <= available) continue;
    throw ConfigError(str(what, ": needs ", human_bytes(needed), " (", needed, " bytes) of host memory for the ", count,
                          " ranks on the host of rank ", first, ", which has ", human_bytes(available), " (", available,
                          " bytes) free: ", fix));
  }
}

void require_host_memory(comm::World& world, Index bytes, const std::string& what, const std::string& fix) {
  Exec host;
  comm::barrier(host, world.all());
  const HostShare mine{host_id(), bytes, available_host_memory().value_or(std::numeric_limits<Index>::max())};
  require_host_memory(comm::gather_values(world.all(), mine), what, fix);
}

}  // namespace megalith::train
