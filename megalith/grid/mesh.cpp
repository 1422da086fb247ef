#include "megalith/grid/mesh.h"

#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::grid {

Mesh make_mesh(comm::World& world, const ResolvedSizes& sizes, comm::Carrier transfers) {
  if (sizes.world_size != world.size()) {
    throw ConfigError(str("parallel.ranks = ", sizes.world_size, ": the job has ", world.size(), " ranks"));
  }
  const GroupCatalog catalog(sizes);
  const auto make = [&](GroupKind kind, comm::GroupUse use = {}) {
    use.carrier = transfers;
    const std::optional<int> group = catalog.group_of(kind, world.rank());
    std::vector<int> members = group ? catalog.members(kind, *group) : std::vector<int>{world.rank()};
    return world.group(std::string(name_of(kind)), std::move(members), use);
  };
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  comm::Group all = world.group("world", std::move(ranks), {.carrier = comm::Carrier::kernels});  // all is small there
  comm::Group dp = make(GroupKind::dp_cp), tp = make(GroupKind::tp, {.blocks = comm::Blocks::few}),
              pp = make(GroupKind::pp, {.messages = comm::Messages::neighbours}), embd = make(GroupKind::embd);
  return {sizes, all, tp, pp, dp, embd};
}

std::string describe(const Mesh& mesh) {
  return str("rank ", mesh.world.rank(), " (tp ", mesh.tp_rank(), ", pp ", mesh.pp_rank(), ", dp ", mesh.dp_rank(),
             ")");
}

}  // namespace megalith::grid
