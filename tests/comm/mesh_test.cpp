#include "megalith/comm/mesh.h"

#include <numeric>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/comm/threads/thread_world.h"

namespace megalith::comm {
namespace {

std::vector<int> ranks_of(const Group& group) { return {group.world_ranks().begin(), group.world_ranks().end()}; }

/// Every rank sums its number over its group of every kind and gets the sum of the group's members.
TEST(Mesh, SumsOfRanksOverEveryKindAreThoseOfTheMembers) {
  for (const grid::ParallelSizes& sizes :
       {grid::ParallelSizes{.world_size = 8, .tp = 2, .pp = 2},
        grid::ParallelSizes{.world_size = 8, .tp = 2, .pp = 2, .ep = 2, .etp = 1},
        grid::ParallelSizes{.world_size = 8, .tp = 2, .cp = 2, .pp = 1, .order = "dp-tp-cp-ep-pp"}}) {
    const grid::GroupCatalog catalog(grid::resolve(sizes));
    run_ranks(8, [&](World& world) {
      Exec ex;
      for (const grid::Membership& membership : catalog.memberships(world.rank())) {
        if (membership.ranks.empty()) continue;
        const Group group = world.group(std::string(membership.name), membership.ranks);
        std::int64_t number = world.rank();
        all_reduce(ex, group, Tensor(&number, {1}, DType::i64), Reduce::sum).wait(ex);
        EXPECT_EQ(number, std::accumulate(membership.ranks.begin(), membership.ranks.end(), std::int64_t{0}))
            << membership.name;
      }
    });
  }
}

TEST(Mesh, HoldsTheGroupsOfARun) {
  run_ranks(8, [](World& world) {
    const Mesh mesh = make_mesh(world, grid::resolve({.world_size = 8, .tp = 2, .pp = 2}));
    EXPECT_EQ(mesh.tp.size(), 2);
    EXPECT_EQ(mesh.pp.size(), 2);
    EXPECT_EQ(mesh.dp.size(), 2);
    EXPECT_EQ(mesh.world.size(), 8);
    EXPECT_EQ(mesh.tp_rank(), world.rank() % 2);
    EXPECT_EQ(mesh.pp_rank(), world.rank() / 4);
    EXPECT_EQ(mesh.first_stage(), world.rank() < 4);
    EXPECT_EQ(mesh.embd.size(), 2);
  });
}

/// Both grids of a run: sizes, members of the data's and the experts' groups, and which groups are one.
TEST(Mesh, HasTheGroupsOfBothGrids) {
  run_ranks(16, [](World& world) {
    const grid::ResolvedSizes sizes = grid::resolve({.world_size = 16, .tp = 2, .cp = 2, .pp = 2, .ep = 2, .etp = 1});
    const Mesh mesh = make_mesh(world, sizes);
    const grid::GroupCatalog catalog(sizes);
    const auto expect = [&](const Group& group, grid::GroupKind kind) {
      EXPECT_EQ(group.size(), catalog.group_size(kind)) << name_of(kind);
      EXPECT_EQ(ranks_of(group), catalog.members(kind, *catalog.group_of(kind, world.rank()))) << name_of(kind);
    };
    using enum grid::GroupKind;
    expect(mesh.dp, dp);
    expect(mesh.dp_cp, dp_cp);
    expect(mesh.cp, cp);
    expect(mesh.tp, tp);
    expect(mesh.pp, pp);
    expect(mesh.ep, ep);
    expect(mesh.etp, etp);
    expect(mesh.etp_ep, etp_ep);
    expect(mesh.edp, edp);
    ASSERT_TRUE(mesh.etp_ep_pp);
    expect(*mesh.etp_ep_pp, etp_ep_pp);
    EXPECT_EQ(ranks_of(mesh.reduction_group(grid::kSharded)), ranks_of(mesh.dp_cp));
    EXPECT_EQ(ranks_of(mesh.reduction_group({.grid = grid::GridKind::expert})), ranks_of(mesh.edp));
    EXPECT_EQ(mesh.replica_group(grid::kSharded), nullptr);
    EXPECT_EQ(mesh.replica_group(grid::kReplicated), &mesh.tp);
    EXPECT_EQ(mesh.replica_group(grid::kTiedEnds), &mesh.embd);
  });
}

TEST(Mesh, ADenseRunMakesNoMoreGroupsThanItsGridHas) {
  run_ranks(8, [](World& world) {
    const Mesh mesh = make_mesh(world, grid::resolve({.world_size = 8, .tp = 2, .pp = 2}));
    std::vector<std::string> made;
    for (const Group& group : world.groups()) {
      if (group.size() > 1) made.emplace_back(group.name());
    }
    EXPECT_EQ(made, (std::vector<std::string>{"world", "dp-cp", "tp", "pp", "embd"}));
    EXPECT_FALSE(mesh.etp_ep_pp);
    EXPECT_EQ(ranks_of(mesh.edp), ranks_of(mesh.dp_cp));
    EXPECT_EQ(mesh.coordinates(grid::GridKind::dense),
              (grid::PerAxis{.tp = mesh.tp_rank(), .dp = mesh.dp_rank(), .pp = mesh.pp_rank()}));
  });
}

TEST(Mesh, MiddleStagesHaveAnEmbeddingGroupOfTheirOwn) {
  run_ranks(4, [](World& world) {
    const Mesh mesh = make_mesh(world, grid::resolve({.world_size = 4, .pp = 4}));
    EXPECT_EQ(mesh.embd.size(), world.rank() % 3 == 0 ? 2 : 1);
    EXPECT_EQ(describe(mesh),
              "rank " + std::to_string(world.rank()) + " (tp 0, pp " + std::to_string(world.rank()) + ", dp 0)");
  });
}

TEST(Mesh, AWorldOfAnotherSizeIsRefused) {
  const auto world = dry_world(0, 4);
  EXPECT_THROW(make_mesh(*world, grid::resolve({.world_size = 8})), ConfigError);
}

}  // namespace
}  // namespace megalith::comm
