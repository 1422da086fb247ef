#include "megalith/comm/mesh.h"

#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::comm {
namespace {

using grid::GroupKind;

/// Makes a rank's groups, one for each list of members.
class GroupMaker {
 public:
  GroupMaker(World& world, const grid::ResolvedSizes& sizes, Transport transfers)
      : world_(world), catalog_(sizes), transfers_(transfers) {}

  Group make(GroupKind kind, GroupUse use = {}) const {
    use.transport = transfers_;
    return world_.group(std::string(name_of(kind)), members(kind), use);
  }
  /// The group of another kind where it has the same members on every rank.
  Group same_or_made(GroupKind kind, GroupKind other, const Group& group) const {
    return catalog_.groups(kind) == catalog_.groups(other) ? group : make(kind);
  }

 private:
  std::vector<int> members(GroupKind kind) const {
    const std::optional<int> group = catalog_.group_of(kind, world_.rank());
    return group ? catalog_.members(kind, *group) : std::vector<int>{world_.rank()};
  }

  World& world_;
  grid::GroupCatalog catalog_;
  Transport transfers_;
};

}  // namespace

Mesh make_mesh(World& world, const grid::ResolvedSizes& sizes, Transport transfers) {
  if (sizes.world_size != world.size()) {
    throw ConfigError(str("parallel.ranks = ", sizes.world_size, ": the job has ", world.size(), " ranks"));
  }
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const Group all = world.group("world", std::move(ranks), {.transport = Transport::kernels});  // its calls are small
  const GroupMaker groups(world, sizes, transfers);
  // Groups are made in the catalogue's order, except those that equal another one.
  const Group dp_cp = groups.make(GroupKind::dp_cp);
  const Group dp = groups.same_or_made(GroupKind::dp, GroupKind::dp_cp, dp_cp);
  const Group cp = groups.make(GroupKind::cp);
  const Group tp = groups.make(GroupKind::tp, {.cta_limit = CtaLimit::few});
  const Group pp = groups.make(GroupKind::pp, {.messages = Messages::neighbours});
  const Group embd = groups.make(GroupKind::embd);
  const Group ep = groups.make(GroupKind::ep);  // and etp_ep with its members, if tp = 1: clones move beside rows
  const Group etp = groups.same_or_made(GroupKind::etp, GroupKind::tp, tp);
  const Group etp_ep = groups.same_or_made(GroupKind::etp_ep, GroupKind::etp, etp);
  std::optional<Group> etp_ep_pp;
  if (sizes.ep > 1 || sizes.etp != sizes.tp) etp_ep_pp = groups.make(GroupKind::etp_ep_pp);
  const Group edp = groups.same_or_made(GroupKind::edp, GroupKind::dp_cp, dp_cp);
  return {sizes, all, dp, dp_cp, cp, tp, pp, embd, ep, etp, etp_ep, etp_ep_pp, edp};
}

grid::PerAxis Mesh::coordinates(grid::GridKind grid) const {
  const grid::RankGenerator ranks = grid == grid::GridKind::dense ? dense_grid(sizes) : expert_grid(sizes);
  return ranks.coordinates(world.rank());
}

const Group& Mesh::reduction_group(const grid::Placement& placement) const {
  return grid::reduction_group(placement) == GroupKind::edp ? edp : dp_cp;
}

const Group* Mesh::replica_group(const grid::Placement& placement) const {
  const std::optional<GroupKind> kind = grid::replica_group(placement);
  if (!kind) return nullptr;
  return *kind == GroupKind::tp ? &tp : *kind == GroupKind::etp ? &etp : &embd;
}

std::string describe(const Mesh& mesh) {
  return str("rank ", mesh.world.rank(), " (tp ", mesh.tp_rank(), ", pp ", mesh.pp_rank(), ", dp ", mesh.dp_rank(),
             ")");
}

}  // namespace megalith::comm
