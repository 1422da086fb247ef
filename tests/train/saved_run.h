#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/train/saver.h"

#include "tests/io/temp_dir.h"
#include "tests/train/small_run.h"

namespace megalith::support {

/// What a run reports and leaves behind.
struct SavedRun {
  std::vector<double> losses, norms, evaluated;
  std::string digest;  ///< of masters and moments
};

inline void expect_same(const SavedRun& got, const SavedRun& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.evaluated, want.evaluated);
  EXPECT_EQ(got.digest, want.digest);
}

/// One rank's steps from `begin`, where `folder` stands, to `end`, with an evaluation every 10 steps, saved there; rank
/// 0 adds them to `run`.
inline void train_saved(comm::World& world, Index begin, Index end, const config::RunPlan& plan, const io::Path& folder,
                        SavedRun& run) {
  constexpr Index kEvaluatedEvery = 10;
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  train::Engine engine(world, plan);
  engine.allocate();
  train::Saver saver(engine, plan, {1, 2}, *fs, folder);
  const HashedBatches source(plan.model.vocab_size);
  train::Progress progress;
  if (const std::optional<train::Resumed> resumed = saver.resume()) progress = resumed->progress;
  EXPECT_EQ(progress.step, begin);
  while (progress.step < end) {
    const train::StepReport step = engine.step(source, progress, train::Stop::no);
    progress = {progress.step + 1, progress.samples + plan.train.batch_after(progress.samples)};
    const bool evaluates = progress.step % kEvaluatedEvery == 0;
    const double loss = evaluates ? engine.evaluate(source, 2 * plan.train.global_batch) : 0;
    if (world.rank() != 0) continue;
    run.losses.push_back(step.loss);
    run.norms.push_back(step.grad_norm);
    if (evaluates) run.evaluated.push_back(loss);
  }
  EXPECT_EQ(engine.train_graph().captured(), plan.graphs.mode == capture::GraphMode::iteration);
  EXPECT_EQ(engine.layer_graphs().stats().graphs > 0, plan.graphs.mode == capture::GraphMode::layers);
  const std::string digest = saver.save(progress).hex();
  if (world.rank() == 0) run.digest = digest;
}

/// A run on rank threads that was saved and resumed at all of `ends` but the last one.
inline SavedRun trained_in_parts(const config::RunPlan& plan, const std::vector<Index>& ends) {
  const TempDir dir;
  SavedRun run;
  for (const Index end : ends) {
    const auto begin = static_cast<Index>(run.losses.size());
    comm::run_ranks(plan.grid.world_size,
                    [&](comm::World& world) { train_saved(world, begin, end, plan, dir.path(), run); });
  }
  return run;
}

}  // namespace megalith::support
