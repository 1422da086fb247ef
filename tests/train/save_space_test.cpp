#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/train/saver.h"

#include "tests/io/small_disk.h"
#include "tests/io/temp_dir.h"
#include "tests/train/small_run.h"

// The space that a save asks for before it begins: close above what it takes.
namespace megalith {
namespace {

using support::Grid;
using ::testing::HasSubstr;

constexpr std::uint64_t kBlock = 4096;

/// What the files of a folder take on a disk.
std::uint64_t bytes_on_disk(const io::Path& folder) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += (entry.file_size() + kBlock - 1) / kBlock * kBlock;
  }
  return bytes;
}

/// Saves the first values where `free` bytes are free; what came of it is rank 0's.
std::string save_with(std::uint64_t free, const config::RunPlan& plan, const io::Path& folder,
                      const tokenizer::VocabularyFiles& vocabulary) {
  std::string problem;
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    io::SmallDisk disk(free);
    train::Engine engine(world, plan);
    engine.allocate();
    train::Saver saver(engine, plan, {.tokenizer = 1, .corpus = 2, .vocabulary = vocabulary}, disk, folder);
    try {
      saver.save({}, train::Space::asked);
    } catch (const IoError& error) {
      if (world.rank() == 0) problem = error.what();
    }
  });
  return problem;
}

TEST(SaveSpace, OneAndAHalfOfASmallCheckpointIsEnoughAndLessThanOneIsNot) {
  const auto vocabulary = std::make_shared<const std::vector<tokenizer::VocabularyFile>>(
      std::vector<tokenizer::VocabularyFile>{{"vocab.json", std::string(70'000, ' ')}});
  for (const Grid& grid : {Grid{}, Grid{.tp = 2, .pp = 2}, Grid{.dp = 4, .sharding = Sharding::optimizer}}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(grid.name() + " " + precision);
      const config::RunPlan plan = support::small_plan(grid, precision);
      const TempDir dir;
      ASSERT_EQ(save_with(io::Fs::kUnknownBytes, plan, dir / "first", vocabulary), "");
      const std::uint64_t taken = bytes_on_disk(dir / "first");
      EXPECT_EQ(save_with(taken * 3 / 2, plan, dir / "enough", vocabulary), "") << taken;
      EXPECT_THAT(save_with(taken - 1, plan, dir / "less", vocabulary), HasSubstr("a checkpoint takes ")) << taken;
      EXPECT_FALSE(std::filesystem::exists(dir / "less")) << "nothing was begun";
    }
  }
}

TEST(SaveSpace, AfterASaveItsSizeIsKnown) {
  const config::RunPlan plan = support::small_plan({.tp = 2}, "fp32");
  const TempDir dir;
  ASSERT_EQ(save_with(io::Fs::kUnknownBytes, plan, dir / "first", nullptr), "");
  const std::uint64_t taken = bytes_on_disk(dir / "first");
  comm::run_ranks(2, [&](comm::World& world) {
    io::SmallDisk disk(taken + taken / 4);
    train::Engine engine(world, plan);
    engine.allocate();
    train::Saver saver(engine, plan, {1, 2}, disk, dir / "a");
    saver.save({});
    EXPECT_EQ(saver.lack_of_space(), "");
    saver.save({.step = 1, .samples = 8}, train::Space::asked);
  });
  EXPECT_TRUE(std::filesystem::exists(dir / "a" / "step_00000001"));
}

}  // namespace
}  // namespace megalith
