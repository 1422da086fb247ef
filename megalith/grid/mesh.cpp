#include "megalith/grid/mesh.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::grid {

Mesh make_mesh(comm::World& world, const ResolvedSizes& sizes) {
  if (sizes.world_size != world.size()) {
    throw ConfigError(str("parallel.ranks = ", sizes.world_size, ": the job has ", world.size(), " ranks"));
  }
  const GroupCatalog catalog(sizes);
  const auto make = [&](GroupKind kind) {
    const std::optional<int> group = catalog.group_of(kind, world.rank());
    std::vector<int> members = group ? catalog.members(kind, *group) : std::vector<int>{world.rank()};
    return world.group(std::string(name_of(kind)), std::move(members));
  };
  comm::Group dp = make(GroupKind::dp_cp), tp = make(GroupKind::tp), pp = make(GroupKind::pp),
              embd = make(GroupKind::embd);
  return {sizes, world.all(), tp, pp, dp, embd};
}

std::string describe(const Mesh& mesh) {
  return str("rank ", mesh.world.rank(), " (tp ", mesh.tp_rank(), ", pp ", mesh.pp_rank(), ", dp ", mesh.dp_rank(),
             ")");
}

}  // namespace megalith::grid
