#include <gtest/gtest.h>

#include "tests/train/small_run.h"

// Batches whose samples have lengths of their own: the input reaches attention on every stage of a pipeline, and no
// grid changes the result. No recipe has such a model yet.
namespace megalith {
namespace {

using support::Grid;
using support::RunRecord;

/// As HashedBatches, with a length per sample. Padding has targets too: attention makes its rows zeros, which shows in
/// the loss.
class BatchesWithLengths final : public support::HashedBatches {
 public:
  using HashedBatches::HashedBatches;
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    if (!batch.tokens.empty()) HashedBatches::fill(first_sample, count, batch);
    for (std::size_t i = 0; i < batch.lengths.size(); ++i)
      batch.lengths[i] = static_cast<std::int32_t>((first_sample + static_cast<Index>(i)) * 5 % 10);
  }
};

std::unique_ptr<RunRecord> trained(const Grid& grid, ops::SampleLengths lengths,
                                   const capture::GraphsConfig& graphs = {}) {
  config::RunPlan plan = support::small_plan(grid, "fp64", 4);
  plan.model.lengths = lengths;
  plan.graphs = graphs;
  auto record = std::make_unique<RunRecord>();
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    support::train_rank(world, plan, BatchesWithLengths(plan.model.vocab_size), *record);
  });
  return record;
}

TEST(SampleLengths, ReachAttentionOnEveryStageOfEveryGrid) {
  const auto one = trained({}, ops::SampleLengths::given);
  const Grid grids[] = {{.tp = 2}, {.pp = 4}, {.pp = 4, .chunks = 2}, {.dp = 2}, {.tp = 2, .pp = 2, .dp = 2}};
  for (const Grid& grid : grids) {
    SCOPED_TRACE(grid.name());
    const auto record = trained(grid, ops::SampleLengths::given);
    EXPECT_LT(support::relative_error(record->losses, one->losses), 1e-12);
    EXPECT_LT(support::relative_error(record->norms, one->norms), 1e-12);
    EXPECT_LT(support::relative_error({record->evaluated}, {one->evaluated}), 1e-12);
  }
  EXPECT_GT(support::relative_error(one->losses, trained({}, ops::SampleLengths::equal)->losses), 1e-6);
}

TEST(SampleLengths, ReachGraphsOfWholeSteps) {
  const Grid grid{.pp = 4};
  capture::GraphsConfig graphs;
  graphs.mode = capture::GraphMode::iteration;
  graphs.warmup_steps = 1;
  const auto eager = trained(grid, ops::SampleLengths::given),
             captured = trained(grid, ops::SampleLengths::given, graphs);
  EXPECT_EQ(captured->losses, eager->losses);
  EXPECT_EQ(captured->norms, eager->norms);
}

}  // namespace
}  // namespace megalith
