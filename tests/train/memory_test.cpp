#include <memory>

#include "tests/support/count_allocations.h"
#include "tests/train/small_run.h"

namespace megalith {
namespace {

using support::Grid;

class Memory : public ::testing::TestWithParam<Grid> {};

TEST_P(Memory, AStepAllocatesNothingAfterTheFirst) {
  for (const char* precision : {"fp64", "fp32"}) {
    const config::RunPlan plan = support::small_plan(GetParam(), precision);
    comm::run_ranks(GetParam().ranks(), [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      const support::HashedBatches source(plan.model.vocab_size);
      train::Progress progress;
      long allocations = 0;
      for (Index step = 0; step < 4; ++step) {
        const support::CountAllocations counter;
        engine.step(source, progress, train::Stop::no);
        if (step > 0) allocations += counter.count();
        progress = {step + 1, progress.samples + plan.train.global_batch};
      }
      EXPECT_EQ(allocations, 0) << "rank " << world.rank() << ", " << precision;
    });
  }
}

TEST(MemoryCounter, SeesAnAllocation) {
  const support::CountAllocations counter;
  const std::unique_ptr<int> one = std::make_unique<int>(1);
  EXPECT_EQ(counter.count(), *one);
}

TEST_P(Memory, TheRunTakesWhatThePlanSays) {
  for (const char* precision : {"fp32", "bf16"}) {
    const config::RunPlan plan = support::small_plan(GetParam(), precision, 2);
    comm::run_ranks(GetParam().ranks(), [&](comm::World& world) {
      const std::unique_ptr<comm::World> dry = comm::dry_world(world.rank(), world.size());
      const BytesByOwner planned = train::Engine(*dry, plan).planned_bytes();
      train::Engine engine(world, plan);
      engine.allocate();
      EXPECT_EQ(engine.taken_bytes(), planned) << "rank " << world.rank() << ", " << precision;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, Memory, ::testing::ValuesIn(support::all_grids()),
                         [](const auto& test) { return test.param.name(); });
INSTANTIATE_TEST_SUITE_P(Sharded, Memory, ::testing::ValuesIn(support::sharded_grids()),
                         [](const auto& test) { return test.param.name(); });

INSTANTIATE_TEST_SUITE_P(ShardedGradients, Memory, ::testing::ValuesIn(support::gradient_grids()),
                         [](const auto& test) { return test.param.name(); });

TEST(Memory, DoesNotGrowWithTheNumberOfMicrobatches) {
  const auto bytes = [](Index batch) {
    config::RunPlan plan = support::small_plan({.pp = 4}, "fp32");
    plan.train.global_batch = batch;
    const std::unique_ptr<comm::World> world = comm::dry_world(0, 4);
    return train::Engine(*world, plan).planned_bytes();
  };
  EXPECT_EQ(bytes(16), bytes(256));
}

}  // namespace
}  // namespace megalith
