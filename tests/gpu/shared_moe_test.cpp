// Whole steps of models with experts, of ranks that share one GPU, or a few.
#include "tests/comm/peer_ranks.h"
#include "tests/gpu/collect.h"
#include "tests/gpu/moe_plan.h"
#include "tests/support/twin.h"

namespace megalith {
namespace {

using support::MoeGrid;

class SharedGpuMoe : public ::testing::TestWithParam<MoeGrid> {
 protected:
  void SetUp() override {
    MEGALITH_NEEDS_GPUS(1);
    if (comm::ranks_are_processes()) GTEST_SKIP() << "these tests keep one record of all rank threads";
  }
};
INSTANTIATE_TEST_SUITE_P(RanksThatShareGpus, SharedGpuMoe,
                         ::testing::Values(MoeGrid{2, 1, 1, 2, 1}, MoeGrid{4, 1, 1, 4, 1}, MoeGrid{2, 1, 1, 1, 2},
                                           MoeGrid{4, 2, 1, 2, 1}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(SharedGpuMoe, PeersHaveTheBitsOfAllToAll) {
  support::expect_peers_have_the_bits_of_all_to_all(GetParam(), [](const config::RunPlan& plan) {
    auto record = std::make_unique<support::RunRecord>();
    const support::HashedBatches source(plan.model.vocab_size);
    comm::run_peer_ranks(
        plan.grid.world_size, [&](comm::World& world) { support::train_rank(world, plan, source, *record); },
        comm::InReach::tensors, comm::PeerCalls::all_in_turn);
    return record;
  });
}

}  // namespace
}  // namespace megalith
