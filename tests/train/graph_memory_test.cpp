// The memory of graphs of layers, counted from the addresses that captured ops touch: it follows the microbatches in
// flight and not how many there are.
#include <algorithm>
#include <numeric>

#include "megalith/train/graph_accounting.h"

#include "tests/train/graph_run.h"

namespace megalith {
namespace {

using capture::GraphsPer;
using capture::Role;
using capture::TouchedMemory;
using support::Grid;

constexpr int kLayersOfARank = 4;

/// What each rank's graphs touch, after a step that captures.
std::vector<TouchedMemory> count_all(const Grid& grid, GraphsPer per, int microbatches, int layers = kLayersOfARank) {
  config::RunConfig config = support::small_config(grid, "fp32", 1);
  config.model.num_layers = Index{layers} * grid.pp;
  config.train.global_batch = microbatches * *config.train.micro_batch;
  config::RunPlan plan = config::resolve(config);
  plan.graphs.mode = capture::GraphMode::layers;
  plan.graphs.per = per;
  plan.graphs.warmup_steps = 0;
  std::vector<TouchedMemory> all(static_cast<std::size_t>(grid.ranks()));
  support::run_of(plan, [&](train::Engine& engine, Index) {
    TouchedMemory& mine = all[static_cast<std::size_t>(engine.world().rank())];
    mine = capture::touched_memory(engine.layer_graphs(), engine.taken_memory());
    const BytesByOwner& taken = engine.taken_bytes();
    for (std::size_t owner = 0; owner < capture::kTouchedOwners.size(); ++owner) {
      const auto found = taken.find(std::string(capture::kTouchedOwners[owner]));
      EXPECT_LE(mine.in(Role::any, owner), found == taken.end() ? 0 : found->second) << capture::kTouchedOwners[owner];
    }
  });
  return all;
}

/// The bytes of a step, whoever owns them.
Index all_bytes(const TouchedMemory& touched, Role role) {
  const auto& by_owner = touched.bytes[static_cast<std::size_t>(role)];
  return std::accumulate(by_owner.begin(), by_owner.end(), Index{0});
}

class GraphMemory : public ::testing::TestWithParam<std::tuple<Grid, GraphsPer>> {};

TEST_P(GraphMemory, FollowsTheMicrobatchesInFlight) {
  const auto& [grid, per] = GetParam();
  // Where chunks share slots and lay them out differently, more microbatches meet more places of the same memory.
  const bool meets_all_places = grid.pp < 4 || grid.chunks == 1;
  std::vector<TouchedMemory> fewest;
  for (const int microbatches : {8, 16, 64}) {
    SCOPED_TRACE(str(microbatches, " microbatches"));
    std::vector<TouchedMemory> all = count_all(grid, per, microbatches);
    const auto sets_of = [&](int rank) {
      return Index{support::chunks_in_flight(grid.pp, grid.chunks, rank / grid.tp, microbatches)} * kLayersOfARank /
             grid.chunks;
    };
    // The bytes of a layer and microbatch.
    const Index saved_bytes_of_one =
        count_all({.tp = grid.tp, .sequence_parallel = grid.sequence_parallel}, per, 1, 1).front().saved.bytes;
    EXPECT_GT(saved_bytes_of_one, 0);
    for (int rank = 0; rank < grid.ranks(); ++rank) {
      SCOPED_TRACE(str("rank ", rank));
      TouchedMemory& touched = all[static_cast<std::size_t>(rank)];
      const Index sets = sets_of(rank);
      EXPECT_EQ(touched.inputs.count, sets) << "5.2, M13";
      // What an MLP gives, which only the next layer's forward reads, has one place for all.
      const Index size = touched.inputs.bytes / sets;
      EXPECT_EQ(touched.second_inputs, (TouchedMemory::Buffers{1, size}));
      // A layer with one below makes what it reads itself, the sum of both, and keeps that, too.
      const Index inner_sets = sets - support::chunks_in_flight(grid.pp, grid.chunks, rank / grid.tp, microbatches);
      EXPECT_EQ(touched.saved.bytes, sets * saved_bytes_of_one + inner_sets * size) << "5.3";
      // A chunk's last layer's goes into a message, and is passed on.
      EXPECT_LE(touched.outputs.count, sets) << "5.3, M13";
      // Per microbatch, one message is received ahead where it stays.
      if (grid.chunks == 1) {
        EXPECT_LE(all_bytes(touched, Role::layer_input) + all_bytes(touched, Role::chunk_input),
                  size * (sets + 1 + (per == GraphsPer::microbatch && rank >= grid.tp ? 1 : 0)));
      }
      if (!meets_all_places) touched.bytes = {}, touched.shared = {};
    }
    if (fewest.empty()) fewest = all;
    EXPECT_TRUE(all == fewest) << "grows with the microbatches";
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GraphMemory,
    ::testing::Combine(::testing::Values(Grid{}, Grid{.pp = 2}, Grid{.pp = 4}, Grid{.pp = 2, .chunks = 2},
                                         Grid{.pp = 4, .chunks = 2},
                                         Grid{.tp = 2, .pp = 2, .sequence_parallel = nn::SequenceParallel::on}),
                       ::testing::Values(GraphsPer::microbatch, GraphsPer::slot)),
    [](const auto& test) { return std::get<0>(test.param).name() + "_" + std::string(name(std::get<1>(test.param))); });

}  // namespace
}  // namespace megalith
