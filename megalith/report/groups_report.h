#pragma once
#include <optional>
#include <string>

#include "megalith/grid/parallel_config.h"

namespace megalith::apps {

enum class GroupsFormat { text, json };

/// What `megalith groups` was asked.
struct GroupsRequest {
  grid::ParallelSizes sizes{};
  GroupsFormat format = GroupsFormat::text;
  std::optional<int> ranks_per_node{};  ///< also count the groups that span nodes of so many ranks
  std::optional<int> rank{};            ///< only this rank's coordinates, groups and neighbours
};

struct GroupsReport {
  std::string output;                 ///< for standard output, ends with a line feed
  std::vector<std::string> warnings;  ///< grid::placement_warnings(): with ranks_per_node only
};

/// Pure. O(world size), with `rank` O(sum of its groups' sizes). Throws ConfigError on illegal sizes (see
/// grid::resolve), a rank outside the world or ranks_per_node < 1.
GroupsReport groups_report(const GroupsRequest& request);

}  // namespace megalith::apps
