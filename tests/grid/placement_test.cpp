#include "megalith/grid/placement.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::grid {
namespace {

constexpr Placement kExpert{.grid = GridKind::expert};
constexpr Placement kExpertReplicated{.grid = GridKind::expert, .replicated = kDataAxes | Axes{Axis::tp}};

struct Row {
  const char* name;
  Placement placement;
  GroupKind reduced_over;
  std::optional<GroupKind> replicas;
  bool is_partial = false;
};
const std::vector<Row> kRows = {
    {"a matrix", kSharded, GroupKind::dp_cp, std::nullopt},
    {"a bias after a sum", kReplicated, GroupKind::dp_cp, GroupKind::tp},
    {"a norm under sequence parallelism", kReplicatedPartial, GroupKind::dp_cp, GroupKind::tp, true},
    {"the tied table", kTiedEnds, GroupKind::dp_cp, GroupKind::embd, true},
    {"an expert", kExpert, GroupKind::edp, std::nullopt},
    {"an expert's bias", kExpertReplicated, GroupKind::edp, GroupKind::etp},
};

const std::vector<ParallelSizes> kGrids = {
    {.world_size = 1},
    {.world_size = 8, .tp = 2, .pp = 2},
    {.world_size = 8, .tp = 2, .cp = 2},
    {.world_size = 16, .tp = 2, .pp = 4},
    {.world_size = 16, .tp = 2, .pp = 2, .ep = 2, .etp = 1},
    {.world_size = 16, .tp = 2, .cp = 2, .pp = 1, .ep = 4, .etp = 2},
    {.world_size = 16, .tp = 4, .pp = 2, .ep = 2, .etp = 2, .order = "dp-tp-cp-ep-pp"},
};

PerAxis place_of(GridKind kind, const ResolvedSizes& sizes, int rank) {
  return (kind == GridKind::dense ? dense_grid(sizes) : expert_grid(sizes)).coordinates(rank);
}

/// Whether a rank holds such a parameter at all: the table lies on the pipeline's ends.
bool holds(const Placement& placement, const ResolvedSizes& sizes, const PerAxis& place) {
  return !placement.replicated.has(Axis::pp) || place.pp == 0 || place.pp == sizes.pp - 1;
}

TEST(Placement, NamesTheGroupsThatFollowFromIt) {
  for (const Row& row : kRows) {
    EXPECT_NO_THROW(check(row.placement)) << row.name;
    EXPECT_EQ(reduction_group(row.placement), row.reduced_over) << row.name;
    EXPECT_EQ(replica_group(row.placement), row.replicas) << row.name;
    EXPECT_EQ(is_partial_in_copy(row.placement), row.is_partial) << row.name;
  }
}

/// What makes two ranks hold the same values: equal coordinates along all axes that are not replicated.
TEST(Placement, EveryValueHasOneOwnerAndItsCopiesAreThoseOfTheGroups) {
  for (const ParallelSizes& asked : kGrids) {
    const ResolvedSizes sizes = resolve(asked);
    const GroupCatalog catalog(sizes);
    for (const Row& row : kRows) {
      SCOPED_TRACE(str(row.name, ", world ", sizes.world_size, " tp ", sizes.tp, " cp ", sizes.cp, " pp ", sizes.pp,
                       " ep ", sizes.ep, " etp ", sizes.etp));
      const Placement& placement = row.placement;
      std::map<std::vector<int>, std::vector<int>> holders;  // of each value, by its coordinates
      for (int rank = 0; rank < sizes.world_size; ++rank) {
        const PerAxis place = place_of(placement.grid, sizes, rank);
        if (!holds(placement, sizes, place)) continue;
        std::vector<int> value;
        for (const Axis axis : kAxes) value.push_back(placement.replicated.has(axis) ? -1 : place[axis]);
        holders[value].push_back(rank);
      }
      for (const auto& [value, ranks] : holders) {
        int owners = 0;
        std::map<int, int> shard_owners;  // of a sharded optimizer
        for (const int rank : ranks) {
          const PerAxis place = place_of(placement.grid, sizes, rank);
          const bool owns = owns_in_copy(placement, place);
          owners += owns && is_in_first_copy(place) ? 1 : 0;
          const Shard shard = optimizer_shard(placement, sizes, rank);
          if (owns) ++shard_owners[shard.index];
          EXPECT_EQ(shard.count, catalog.group_size(row.reduced_over));
          // Each holder's reduction group and replica group hold this value, and nobody else's.
          for (const std::optional<GroupKind> kind : {std::optional(row.reduced_over), row.replicas}) {
            if (!kind || !catalog.group_of(*kind, rank)) continue;
            for (const int other : catalog.members(*kind, *catalog.group_of(*kind, rank)))
              EXPECT_EQ(std::ranges::count(ranks, other), 1) << "rank " << rank << " with " << other;
          }
        }
        EXPECT_EQ(owners, 1);
        EXPECT_EQ(static_cast<int>(shard_owners.size()), catalog.group_size(row.reduced_over));
        for (const auto& [index, count] : shard_owners) EXPECT_EQ(count, 1) << "shard " << index;
      }
    }
  }
}

TEST(Placement, RefusesWhatNoGroupCanSum) {
  EXPECT_THROW(check({.partial = {Axis::dp}}), InternalError) << "cp ranks see other rows, too";
  EXPECT_THROW(check({.partial = kDataAxes | Axes{Axis::tp}}), InternalError) << "partial where it is not replicated";
  EXPECT_THROW(check({.replicated = kDataAxes | Axes{Axis::tp, Axis::pp}}), InternalError) << "no group of both";
  EXPECT_THROW(check({.grid = GridKind::expert, .replicated = kDataAxes | Axes{Axis::pp}}), InternalError);
}

}  // namespace
}  // namespace megalith::grid
