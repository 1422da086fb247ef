#include "megalith/grid/mesh.h"

#include <numeric>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/comm/threads/thread_world.h"

namespace megalith::grid {
namespace {

/// Every rank sums its number over its group of every kind and gets the sum of the group's members.
TEST(Mesh, SumsOfRanksOverEveryKindAreThoseOfTheMembers) {
  for (const ParallelSizes& sizes :
       {ParallelSizes{.world_size = 8, .tp = 2, .pp = 2},
        ParallelSizes{.world_size = 8, .tp = 2, .pp = 2, .ep = 2, .etp = 1},
        ParallelSizes{.world_size = 8, .tp = 2, .cp = 2, .pp = 1, .order = "dp-tp-cp-ep-pp"}}) {
    const GroupCatalog catalog(resolve(sizes));
    comm::run_ranks(8, [&](comm::World& world) {
      Exec ex;
      for (const Membership& membership : catalog.memberships(world.rank())) {
        if (membership.ranks.empty()) continue;
        const comm::Group group = world.group(std::string(membership.name), membership.ranks);
        std::int64_t number = world.rank();
        comm::all_reduce(ex, group, Tensor(&number, {1}, DType::i64), comm::Reduce::sum).wait(ex);
        EXPECT_EQ(number, std::accumulate(membership.ranks.begin(), membership.ranks.end(), std::int64_t{0}))
            << membership.name;
      }
    });
  }
}

TEST(Mesh, HoldsTheGroupsOfARun) {
  comm::run_ranks(8, [](comm::World& world) {
    const Mesh mesh = make_mesh(world, resolve({.world_size = 8, .tp = 2, .pp = 2}));
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

TEST(Mesh, MiddleStagesHaveAnEmbeddingGroupOfTheirOwn) {
  comm::run_ranks(4, [](comm::World& world) {
    const Mesh mesh = make_mesh(world, resolve({.world_size = 4, .pp = 4}));
    EXPECT_EQ(mesh.embd.size(), world.rank() % 3 == 0 ? 2 : 1);
    EXPECT_EQ(describe(mesh),
              "rank " + std::to_string(world.rank()) + " (tp 0, pp " + std::to_string(world.rank()) + ", dp 0)");
  });
}

TEST(Mesh, AWorldOfAnotherSizeIsRefused) {
  const auto world = comm::dry_world(0, 4);
  EXPECT_THROW(make_mesh(*world, resolve({.world_size = 8})), ConfigError);
}

}  // namespace
}  // namespace megalith::grid
