// The memory of graphs of layers with experts, counted from the addresses that captured ops touch: as for dense layers
// it follows the microbatches in flight, not how many there are, although each is routed in its own way.
#include "megalith/train/graph_accounting.h"

#include "tests/train/graph_run.h"
#include "tests/train/moe_run.h"

namespace megalith {
namespace {

using capture::GraphsPer;
using capture::Scope;
using capture::ScopeSet;
using capture::TouchedMemory;
using support::MoeGrid;

constexpr int kLayersOfARank = 2;

/// Which part of a layer is captured, and how rows move.
struct CapturedPart {
  const char* name;
  ScopeSet scopes;
  const char* dispatcher;
};
const std::vector<CapturedPart>& captured_parts() {
  static const std::vector<CapturedPart> all = {
      {"whole_layers", {}, "peer"},
      {"to_the_first_permutation", {Scope::attn, Scope::moe_router, Scope::moe_preprocess}, "all_to_all"},
      {"router", {Scope::moe_router}, "all_to_all"}};
  return all;
}

/// What each rank's graphs touch, after a step that captures.
std::vector<TouchedMemory> count_all(const MoeGrid& grid, const CapturedPart& part, GraphsPer per, int microbatches) {
  config::RunConfig recipe = support::moe_config(grid, {"", [](config::RunConfig&) {}}, "fp32", 1);
  recipe.model.num_layers = Index{kLayersOfARank} * grid.pp;
  recipe.moe.dispatcher = part.dispatcher;
  recipe.train.global_batch = microbatches * *recipe.train.micro_batch * (grid.ranks / (grid.tp * grid.pp));
  recipe.graphs.mode = "layers";
  recipe.graphs.scopes = part.scopes.names();
  recipe.graphs.per = std::string(name(per));
  recipe.graphs.warmup_steps = 0;
  const config::RunPlan plan = config::resolve(recipe);
  std::vector<TouchedMemory> all(static_cast<std::size_t>(grid.ranks));
  support::run_of(plan, [&](train::Engine& engine, Index) {
    all[static_cast<std::size_t>(engine.world().rank())] =
        capture::touched_memory(engine.layer_graphs(), engine.taken_memory());
  });
  return all;
}

class MoeGraphMemory : public ::testing::TestWithParam<std::tuple<MoeGrid, GraphsPer>> {};

TEST_P(MoeGraphMemory, FollowsTheMicrobatchesInFlight) {
  const auto& [grid, per] = GetParam();
  for (const CapturedPart& part : captured_parts()) {
    std::vector<TouchedMemory> fewest;
    for (const int microbatches : {8, 16, 64}) {
      SCOPED_TRACE(str(part.name, ", ", microbatches, " microbatches"));
      const std::vector<TouchedMemory> all = count_all(grid, part, per, microbatches);
      for (int rank = 0; rank < grid.ranks; ++rank) {
        SCOPED_TRACE(str("rank ", rank));
        const int stage = rank / (grid.ranks / grid.pp);
        const Index sets =
            Index{support::chunks_in_flight(grid.pp, grid.chunks, stage, microbatches)} * kLayersOfARank / grid.chunks;
        const TouchedMemory& touched = all[static_cast<std::size_t>(rank)];
        EXPECT_EQ(touched.inputs.count, sets) << "5.2, M13";
        EXPECT_EQ(touched.inputs.bytes % sets, 0);
        EXPECT_GT(touched.saved.bytes, 0);
      }
      if (fewest.empty()) fewest = all;
      EXPECT_TRUE(all == fewest) << "grows with the microbatches";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MoeGraphMemory,
    ::testing::Combine(::testing::Values(MoeGrid{2, 1, 1, 2, 1}, MoeGrid{2, 1, 2, 1, 1}, MoeGrid{4, 1, 2, 2, 1},
                                         MoeGrid{4, 1, 2, 2, 1, 2}, MoeGrid{4, 1, 4, 1, 1}),
                       ::testing::Values(GraphsPer::microbatch, GraphsPer::slot)),
    [](const auto& test) { return std::get<0>(test.param).name() + "_" + std::string(name(std::get<1>(test.param))); });

}  // namespace
}  // namespace megalith
