#include <cstdlib>
#include <cstring>
#include <new>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tests/train/small_run.h"

namespace {

// Counts operator new on a thread that asks for it: what a step may not do. oneDNN's own are exempt.
thread_local bool counting = false;
thread_local long allocations = 0;

bool from_onednn(const void* caller) {
  Dl_info info{};
  return dladdr(caller, &info) != 0 && std::strstr(info.dli_fname, "libdnnl") != nullptr;
}

void* counted(std::size_t bytes, const void* caller) {
  if (counting && !from_onednn(caller)) ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, __builtin_return_address(0)); }
void* operator new[](std::size_t bytes) { return counted(bytes, __builtin_return_address(0)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace megalith {
namespace {

using testing::Grid;

class Memory : public ::testing::TestWithParam<Grid> {};

TEST_P(Memory, AStepAllocatesNothingAfterTheFirst) {
  for (const char* precision : {"fp64", "fp32"}) {
    const config::RunPlan plan = testing::small_plan(GetParam(), precision);
    comm::run_ranks(GetParam().ranks(), [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      const testing::HashedBatches source(plan.model.vocab_size);
      train::Progress progress;
      allocations = 0;
      for (Index step = 0; step < 4; ++step) {
        counting = step > 0;
        engine.step(source, progress, train::Stop::no);
        counting = false;
        progress = {step + 1, progress.samples + plan.train.global_batch, step + 1};
      }
      EXPECT_EQ(allocations, 0) << "rank " << world.rank() << ", " << precision;
    });
  }
}

TEST(MemoryCounter, SeesAnAllocation) {
  counting = true;
  allocations = 0;
  std::make_unique<int>(1);
  counting = false;
  EXPECT_EQ(allocations, 1);
}

TEST_P(Memory, TheRunTakesWhatThePlanSays) {
  const config::RunPlan plan = testing::small_plan(GetParam(), "fp32", 2);
  comm::run_ranks(GetParam().ranks(), [&](comm::World& world) {
    const std::unique_ptr<comm::World> dry = comm::dry_world(world.rank(), world.size());
    const BytesByOwner planned = train::Engine(*dry, plan).planned_bytes();
    train::Engine engine(world, plan);
    engine.allocate();
    EXPECT_EQ(engine.taken_bytes(), planned) << "rank " << world.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(All, Memory, ::testing::ValuesIn(testing::all_grids()),
                         [](const auto& test) { return test.param.name(); });

TEST(Memory, DoesNotGrowWithTheNumberOfMicrobatches) {
  const auto bytes = [](Index batch) {
    config::RunPlan plan = testing::small_plan({.pp = 4}, "fp32");
    plan.train.global_batch = batch;
    const std::unique_ptr<comm::World> world = comm::dry_world(0, 4);
    return train::Engine(*world, plan).planned_bytes();
  };
  EXPECT_EQ(bytes(16), bytes(256));
}

}  // namespace
}  // namespace megalith
