#include "megalith/train/saver.h"

#include "tests/io/temp_dir.h"
#include "tests/train/graph_run.h"

// A checkpoint between launches, in every way to run from graphs (FG-20, T8).
namespace megalith {
namespace {

using capture::GraphMode;
using capture::GraphsPer;
using testing::Grid;

constexpr Index kSteps = 50, kSavedAt = 23, kEvaluatedEvery = 10;

struct Outcome {
  std::vector<double> losses, norms, evaluated;
  std::string digest;  ///< of masters and moments

  bool operator==(const Outcome&) const = default;
};

/// Steps from where `folder` stands to `end`, with evaluations in between, saved there.
void train_to(Index end, const config::RunPlan& plan, const io::Path& folder, Outcome& outcome) {
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    train::Saver saver(engine, plan, {1, 2}, *fs, folder);
    const testing::HashedBatches source(plan.model.vocab_size);
    train::Progress progress;
    if (const std::optional<train::Resumed> resumed = saver.resume()) progress = resumed->progress;
    EXPECT_EQ(progress.step, end == kSavedAt || outcome.losses.empty() ? 0 : kSavedAt);
    while (progress.step < end) {
      const train::StepResult step = engine.step(source, progress, train::Stop::no);
      progress = {progress.step + 1, progress.samples + plan.train.global_batch};
      const bool evaluates = progress.step % kEvaluatedEvery == 0;
      const double loss = evaluates ? engine.evaluate(source, 2 * plan.train.global_batch) : 0;
      if (world.rank() != 0) continue;
      outcome.losses.push_back(step.loss);
      outcome.norms.push_back(step.grad_norm);
      if (evaluates) outcome.evaluated.push_back(loss);
    }
    EXPECT_EQ(engine.train_graph().captured(), plan.graphs.mode == GraphMode::iteration);
    EXPECT_EQ(engine.layer_graphs().stats().graphs > 0, plan.graphs.mode == GraphMode::layers);
    const std::string digest = saver.save(progress).hex();
    if (world.rank() == 0) outcome.digest = digest;
  });
}

class GraphResume : public ::testing::TestWithParam<Grid> {};

TEST_P(GraphResume, ACheckpointBetweenLaunchesGoesOnWithTheBitsOfEagerSteps) {
  config::RunPlan plan = testing::small_plan(GetParam(), "bf16", kSteps);
  Outcome eager;
  const TempDir eager_dir;
  train_to(kSteps, plan, eager_dir.path(), eager);
  ASSERT_EQ(eager.evaluated.size(), 5u);
  plan.graphs.warmup_steps = 3;
  const auto expect_joined = [&](const char* way) {
    SCOPED_TRACE(way);
    const TempDir dir;
    Outcome joined;
    train_to(kSavedAt, plan, dir.path(), joined);
    train_to(kSteps, plan, dir.path(), joined);
    EXPECT_EQ(joined, eager);
  };
  plan.graphs.mode = GraphMode::iteration;
  expect_joined("iteration");
  plan.graphs.optimizer = true;
  expect_joined("iteration with the optimizer");
  plan.graphs.optimizer = false;
  plan.graphs.mode = GraphMode::layers;
  expect_joined("layers");
  plan.graphs.per = GraphsPer::slot;
  expect_joined("layers per slot");
}

INSTANTIATE_TEST_SUITE_P(All, GraphResume,
                         ::testing::Values(Grid{.tp = 2, .pp = 2, .rows = nn::Rows::shared},
                                           Grid{.pp = 2, .dp = 2, .chunks = 2},
                                           Grid{.dp = 2, .sharding = Sharding::optimizer}),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace megalith
