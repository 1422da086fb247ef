#include "megalith/base/host_limits.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include <sys/resource.h>
#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith {
namespace {

using Path = std::filesystem::path;

/// The number that a file begins with; nothing where it begins with a word ("max").
std::optional<Index> number_in(const Path& file) {
  std::ifstream in(file);
  if (Index number = 0; in >> number) return number;
  return std::nullopt;
}

/// The number after `name` in lines "name number ...".
std::optional<Index> entry_of(const Path& file, std::string_view name) {
  std::ifstream in(file);
  std::string key;
  for (Index number = 0; in >> key >> number; in.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    if (key == name) return number;
  }
  return std::nullopt;
}

template <class T>
void lower(std::optional<T>& least, std::optional<T> value) {
  if (value) least = std::min(least.value_or(*value), *value);
}

/// The names that a version of Linux's control groups gives to what it keeps of memory.
struct MemoryFiles {
  const char *limit, *used;
  std::array<const char*, 2> cached;  ///< entries of memory.stat
};
constexpr MemoryFiles kMemoryOfV2 = {"memory.max", "memory.current", {"inactive_file", "active_file"}};
constexpr MemoryFiles kMemoryOfV1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};

void read_memory(const Path& group, const MemoryFiles& files, HostLimits& limits) {
  constexpr Index kNoLimit = Index{1} << 62;  // version 1 writes the largest number of whole pages
  const std::optional<Index> limit = number_in(group / files.limit), used = number_in(group / files.used);
  if (!limit || *limit >= kNoLimit) return;
  lower(limits.memory_limit, limit);
  if (!used) return;
  Index left = *limit - *used;
  for (const char* entry : files.cached) left += entry_of(group / "memory.stat", entry).value_or(0);
  lower(limits.memory_available, std::optional(std::max<Index>(left, 0)));
}

/// `quota` microseconds of processor time in every `period`.
void limit_cpus(std::optional<Index> quota, std::optional<Index> period, HostLimits& limits) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;  // version 1 writes -1 for no quota
  lower(limits.cpu_quota, std::optional(static_cast<double>(*quota) / static_cast<double>(*period)));
}

void read_cpus_of_v2(const Path& group, HostLimits& limits) {
  std::ifstream in(group / "cpu.max");  // "150000 100000", "max 100000"
  Index quota = 0, period = 0;
  if (in >> quota >> period) limit_cpus(quota, period, limits);
}

void read_cpus_of_v1(const Path& group, HostLimits& limits) {
  limit_cpus(number_in(group / "cpu.cfs_quota_us"), number_in(group / "cpu.cfs_period_us"), limits);
}

/// Visits the process's group and those that hold it. `path` is as /proc/self/cgroup has it, and need not exist: in a
/// container often a part of the hierarchy only is mounted.
template <class Visit>
void for_each_group(const Path& mount, const std::string& path, Visit&& visit) {
  for (Path group = Path(path).relative_path();; group = group.parent_path()) {
    visit(mount / group);
    if (group.empty()) return;
  }
}

bool is_listed(std::string_view name, const std::string& controllers) {
  return ("," + controllers + ",").find("," + std::string(name) + ",") != std::string::npos;
}

/// Where a hierarchy of version 1 is mounted: under the name of its controller, as a rule a link, or under all names.
Path mount_of(const Path& groups, std::string_view controller, const std::string& controllers) {
  const Path mount = groups / controller;
  return std::filesystem::exists(mount) ? mount : groups / controllers;
}

/// What `ulimit -v` leaves of the process's addresses, of which /proc/self/statm has the pages in use.
std::optional<Index> addresses_left(const Path& root) {
  struct rlimit limit {};
  const std::optional<Index> pages = number_in(root / "proc/self/statm");
  if (!pages || ::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return std::max<Index>(0, static_cast<Index>(limit.rlim_cur) - *pages * ::sysconf(_SC_PAGESIZE));
}

}  // namespace

HostLimits host_limits(const Path& root) {
  HostLimits limits;
  if (const std::optional<Index> kib = entry_of(root / "proc/meminfo", "MemAvailable:"))
    limits.memory_available = *kib * 1024;
  lower(limits.memory_available, addresses_left(root));
  const Path mounts = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "number:controllers:path"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) {  // version 2
      for_each_group(mounts, path, [&](const Path& group) {
        read_memory(group, kMemoryOfV2, limits);
        read_cpus_of_v2(group, limits);
      });
    }
    if (is_listed("memory", controllers)) {
      for_each_group(mount_of(mounts, "memory", controllers), path,
                     [&](const Path& group) { read_memory(group, kMemoryOfV1, limits); });
    }
    if (is_listed("cpu", controllers)) {
      for_each_group(mount_of(mounts, "cpu", controllers), path,
                     [&](const Path& group) { read_cpus_of_v1(group, limits); });
    }
  }
  return limits;
}

void require_memory(const HostLimits& limits, Index bytes, std::string_view what, std::string_view fix) {
  const std::optional<Index>& free = limits.memory_available;
  if (!free || bytes <= *free) return;
  throw IoError(str("[memory] ", what, ": needs ", human_bytes(bytes), " (", bytes, " bytes) of host memory, ",
                    human_bytes(*free), " (", *free, " bytes) are free: ", fix));
}

}  // namespace megalith
