#include "megalith/grid/placement.h"

#include <algorithm>

#include "megalith/base/error.h"

namespace megalith::grid {

void check(const Placement& placement) {
  if (!placement.partial.contain(kDataAxes))
    throw InternalError("[Placement] partial: must have the data axes, along which every rank sees other rows");
  if (!placement.replicated.contain(placement.partial))
    throw InternalError("[Placement] partial: must be a subset of the replicated axes");
  static_cast<void>(replica_group(placement));
}

GroupKind reduction_group(const Placement& placement) {
  return placement.grid == GridKind::dense ? GroupKind::dp_cp : GroupKind::edp;
}

std::optional<GroupKind> replica_group(const Placement& placement) {
  const Axes in_copy = placement.replicated.without(kDataAxes);
  if (in_copy.empty()) return std::nullopt;
  if (in_copy == Axes{Axis::tp}) return placement.grid == GridKind::dense ? GroupKind::tp : GroupKind::etp;
  if (in_copy == Axes{Axis::pp} && placement.grid == GridKind::dense) return GroupKind::embd;
  throw InternalError("[Placement] replicated: the catalogue has no group along these axes");
}

bool owns_in_copy(const Placement& placement, const PerAxis& coordinates) {
  const Axes in_copy = placement.replicated.without(kDataAxes);
  return std::ranges::all_of(kAxes, [&](Axis axis) { return !in_copy.has(axis) || coordinates[axis] == 0; });
}

bool is_in_first_copy(const PerAxis& coordinates) {
  return std::ranges::all_of(kAxes, [&](Axis axis) { return !kDataAxes.has(axis) || coordinates[axis] == 0; });
}

Shard optimizer_shard(const Placement& placement, const ResolvedSizes& sizes, int rank) {
  const bool dense = placement.grid == GridKind::dense;
  const MaskedGroups groups = (dense ? dense_grid(sizes) : expert_grid(sizes)).groups(dense ? "dp-cp" : "dp");
  return {groups.index_of(rank), groups.group_size()};
}

}  // namespace megalith::grid
