#pragma once
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/train/saver.h"

#include "tests/train/small_run.h"

namespace megalith::support {

struct Trained {
  std::vector<double> losses;
  checkpoint::Digest128 digest;
};

/// Runs from `begin` (resumed from `folder` unless 0) to `end`, saving there if it began at 0.
inline Trained train_and_save(const config::RunPlan& plan, const io::Path& folder, Index begin, Index end,
                              nn::RouterDecisions* decisions = nullptr) {
  Trained trained;
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    if (decisions != nullptr) engine.stage().moe().decisions = decisions;
    train::Saver saver(engine, plan, {1, 2}, *fs, folder);
    const HashedBatches source(plan.model.vocab_size);
    train::Progress progress;
    if (begin > 0) {
      const std::optional<train::Resumed> resumed = saver.resume();
      ASSERT_TRUE(resumed.has_value());
      progress = resumed->progress;
      EXPECT_EQ(progress.step, begin);
      if (world.rank() == 0) trained.digest = resumed->digest;
    }
    for (Index step = begin; step < end; ++step) {
      const train::StepReport result = engine.step(source, progress, train::Stop::no);
      progress = {step + 1, progress.samples + plan.train.batch_after(progress.samples)};
      if (world.rank() == 0) trained.losses.push_back(result.loss);
    }
    if (begin > 0) return;
    const checkpoint::Digest128 digest = saver.save(progress);
    if (world.rank() == 0) trained.digest = digest;
  });
  return trained;
}

}  // namespace megalith::support
