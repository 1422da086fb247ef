// Checkpoints of versions before (tests/data/checkpoints) are resumed on grids that they were not saved on: resume()
// compares the digest of the loaded state with the one that was saved.
#include <charconv>
#include <filesystem>

#include <gtest/gtest.h>

#include "megalith/train/saver.h"

#include "tests/io/temp_dir.h"
#include "tests/test_data.h"
#include "tests/train/small_run.h"

namespace megalith {
namespace {

std::uint64_t hash_of(const checkpoint::RunState& run, const char* name) {
  const std::string& text = run.texts.at(name);
  std::uint64_t hash = 0;
  std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  return hash;
}

class OldCheckpoint : public ::testing::TestWithParam<const char*> {};

TEST_P(OldCheckpoint, IsResumedOnAnyGrid) {
  const io::Path saved = io::Path(MEGALITH_TEST_DATA) / "checkpoints" / GetParam();
  const checkpoint::Manifest manifest = checkpoint::read_manifest(*io::posix_fs(), saved / "step_00000003");
  const train::DataIdentity identity{hash_of(manifest.run, "tokenizer_hash"), hash_of(manifest.run, "corpus_hash")};
  for (const support::Grid& grid : {support::Grid{}, support::Grid{.tp = 2}, support::Grid{.pp = 2},
                                    support::Grid{.dp = 2, .sharding = Sharding::optimizer}}) {
    config::RunConfig recipe = config::parse_recipe(manifest.run.texts.at("recipe"), "MANIFEST");
    recipe.parallel.ranks = grid.ranks();
    recipe.parallel.tp = grid.tp;
    recipe.parallel.pp = grid.pp;
    recipe.optimizer.distributed = grid.sharding == Sharding::optimizer;
    recipe.train.steps = 4;
    const config::RunPlan plan = config::resolve(recipe);
    const TempDir dir;
    std::filesystem::copy(saved, dir.path(), std::filesystem::copy_options::recursive);
    comm::run_ranks(grid.ranks(), [&](comm::World& world) {
      const std::shared_ptr<io::Fs> fs = io::posix_fs();
      train::Engine engine(world, plan);
      engine.allocate();
      train::Saver saver(engine, plan, identity, *fs, dir.path());
      const std::optional<train::Resumed> resumed = saver.resume();
      ASSERT_TRUE(resumed.has_value());
      EXPECT_EQ(resumed->digest.hex(), manifest.digest.hex()) << grid.name();
      EXPECT_EQ(resumed->progress.step, 3);
      EXPECT_EQ(resumed->progress.samples, 12);
      const support::HashedBatches source(plan.model.vocab_size);
      const train::StepReport step = engine.step(source, resumed->progress, train::Stop::no);
      EXPECT_LT(step.loss, 6) << "of 257 bytes";
      saver.save({4, 16});
    });
    EXPECT_EQ(io::published(*io::posix_fs(), dir.path()).front().step, 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, OldCheckpoint,
                         ::testing::Values("fp32", "bf16_tp2", "sharded", "e01fdf6_pp2", "e01fdf6_bf16_tp2_sharded"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace megalith
