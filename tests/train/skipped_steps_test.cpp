#include "tests/train/skipped_steps.h"

#include <cstring>
#include <limits>

#include "megalith/train/saver.h"

#include "tests/comm/wrapped_world.h"
#include "tests/io/temp_dir.h"

// On the CPU; GPUs have these runs too (tests/gpu/skipped_steps_test.cpp). Here also how loss scaling goes on from a
// checkpoint.
namespace megalith {
namespace {

using capture::GraphsConfig;
using support::Broken;
using support::Grid;

void run_ranks(int size, const std::function<void(comm::World&)>& body) { comm::run_ranks(size, body); }

config::RunPlan plan_of(const Grid& grid, const std::string& precision, const GraphsConfig& graphs = {}) {
  config::RunPlan plan = support::small_plan(grid, precision, 8);
  plan.graphs = graphs;
  return plan;
}

TEST(LossScaling, OneRankThatOverflowsSkipsTheStepOnAll) {
  const std::vector<bool> finite =
      support::run_events(run_ranks, plan_of({.pp = 4}, "fp16"), 0, support::break_embedding_gradient);
  EXPECT_EQ(finite, (std::vector<bool>{false, true, true, false}))
      << "only the last stage, which shares the token table, may see anything of it";
}

TEST(LossScaling, AnOverflowOnTheLargestGridSkipsTheStepOnAll) {
  const Grid grid{.tp = 2, .pp = 2, .dp = 2};
  support::run_events(run_ranks, plan_of(grid, "fp16"), 5, support::break_forward);
  for (const GraphsConfig& graphs : support::graph_ways()) {
    SCOPED_TRACE(support::name_of(graphs));
    support::run_events(run_ranks, plan_of(grid, "fp16", graphs), 5, support::break_forward);
  }
}

std::vector<Grid> nan_grids() {
  return {{.dp = 2},
          {.dp = 2, .sharding = Sharding::optimizer},
          {.tp = 2, .sequence_parallel = nn::SequenceParallel::on},
          {.tp = 2, .pp = 2}};
}

TEST(NanOnOneRank, SkipsTheStepOnAllAndLeavesNoTrace) {
  for (const Grid& grid : nan_grids()) {
    const std::vector<support::Kept> want = support::run_past(run_ranks, plan_of(grid, "fp16"), std::nullopt);
    std::vector<GraphsConfig> ways = support::graph_ways();
    ways.push_back({});
    const int last = grid.ranks() - 1;  // of the last stage: these have a loss
    std::vector<Broken> all = {support::broken_gradients(last), support::broken_gradients(last - 1)};
    all.push_back({0, grid.pp > 1 ? support::break_embedding_gradient : support::break_forward});
    for (const Broken& broken : all) {
      for (const GraphsConfig& graphs : ways) {
        SCOPED_TRACE(grid.name() + ", rank " + std::to_string(broken.rank) + ", " + support::name_of(graphs));
        support::expect_same_steps(support::run_past(run_ranks, plan_of(grid, "fp16", graphs), broken), want);
      }
    }
  }
}

TEST(NanOnOneRank, InOneNumberOfOneGradientSkipsTheStepOnAll) {
  for (const Grid& grid : nan_grids()) {
    const std::vector<support::Kept> want = support::run_past(run_ranks, plan_of(grid, "fp16"), std::nullopt);
    for (const GraphsConfig& graphs : {GraphsConfig{}, support::graphs_of(support::kLayers, support::kWarmupSteps),
                                       support::graphs_of(support::kLayersPerSlot, support::kWarmupSteps)}) {
      for (const char* name : {"layers.1.norm2.bias", "layers.0.mlp.up.weight"}) {
        SCOPED_TRACE(grid.name() + ", " + support::name_of(graphs) + ", " + name);
        const config::RunPlan plan = plan_of(grid, "fp16", graphs);
        const support::MeddlingBatches source(plan.model.vocab_size);
        support::expect_same_steps(support::run_past(run_ranks, plan, nan_in_gradient(0, name, plan, source), source),
                                   want);
      }
    }
  }
}

/// Puts NaN into one number of the next gradients that its thread's rank sends, also from a graph.
class SpoilingChannel final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  static void spoil_next() { spoils_ = true; }
  comm::Ticket reduce_scatter(const comm::Call& call, const void* in, void* out, Stream stream) override {
    if (spoils_ && call.dtype == DType::f32) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(static_cast<std::byte*>(const_cast<void*>(in)) + call.count / 2 * Index{sizeof nan}, &nan,
                  sizeof nan);
      spoils_ = false;
    }
    return ForwardingChannel::reduce_scatter(call, in, out, stream);
  }

 private:
  static thread_local bool spoils_;
};
thread_local bool SpoilingChannel::spoils_ = false;

TEST(NanOnOneRank, InOneNumberThatARankSendsSkipsTheStepOnAll) {
  const support::RunRanks run_spoiling = [](int size, const std::function<void(comm::World&)>& body) {
    comm::run_ranks(size, [&](comm::World& world) {
      comm::WrappedWorld<SpoilingChannel> spoiling(world);
      body(spoiling);
    });
  };
  std::vector<GraphsConfig> ways = support::graph_ways();
  ways.push_back({});
  for (const Grid& grid : {Grid{.dp = 2}, Grid{.dp = 2, .sharding = Sharding::optimizer}, Grid{.tp = 2, .dp = 2},
                           Grid{.pp = 2, .dp = 2}}) {
    const std::vector<support::Kept> want = support::run_past(run_ranks, plan_of(grid, "fp16"), std::nullopt);
    for (const int rank : {0, grid.ranks() - 1}) {
      const Broken one{rank, [](train::Engine&) { SpoilingChannel::spoil_next(); }};
      for (const GraphsConfig& graphs : ways) {
        SCOPED_TRACE(grid.name() + ", rank " + std::to_string(rank) + ", " + support::name_of(graphs));
        support::expect_same_steps(support::run_past(run_spoiling, plan_of(grid, "fp16", graphs), one), want);
      }
    }
  }
}

TEST(NanOnOneRank, EndsABf16RunFromGraphsOnAllAsItEndsAnEagerOne) {
  for (const Grid& grid : nan_grids()) {
    for (const int bad_rank : {grid.ranks() - 2, grid.ranks() - 1}) {
      SCOPED_TRACE(grid.name() + ", rank " + std::to_string(bad_rank));
      const std::vector<std::string> eager = support::errors_of_nan(run_ranks, plan_of(grid, "bf16"), bad_rank);
      for (const std::string& error : eager)
        EXPECT_NE(error.find("parameters stay those of step 4"), std::string::npos) << error;
      for (const GraphsConfig& graphs : support::graph_ways())
        EXPECT_EQ(support::errors_of_nan(run_ranks, plan_of(grid, "bf16", graphs), bad_rank), eager);
    }
  }
}

/// Scales found by the run itself: far too large at first, and again after every doubling.
config::RunPlan overflowing_plan(const Grid& grid) {
  config::RunPlan plan = support::small_plan(grid, "fp16", 24);
  plan.train.scaling = {.initial = 0x1p28, .smallest = 1, .growth_interval = 3};
  return plan;
}

struct Trajectory {
  std::vector<double> losses, scales;
  ops::OptimizerState state;
  std::vector<support::Bytes> kept;
};

/// The trajectory of rank 0, from `begin` (resumed from `folder` unless 0) to `end`; saves there if `end` is not the
/// plan's.
Trajectory run(const config::RunPlan& plan, const io::Path& folder, Index begin, Index end) {
  Trajectory out;
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    train::Saver saver(engine, plan, {1, 2}, *fs, folder);
    const support::HashedBatches source(plan.model.vocab_size);
    if (begin > 0) {
      ASSERT_EQ(saver.resume().value().progress.step, begin);
    }
    Trajectory mine;
    for (Index step = begin; step < end; ++step) {
      const train::StepReport result = engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
      mine.losses.push_back(result.loss);
      mine.scales.push_back(result.loss_scale);
    }
    if (end < plan.train.steps) saver.save({end, end * plan.train.global_batch});
    mine.state = engine.optimizer_state();
    mine.kept = support::kept_state(engine);
    if (world.rank() == 0) out = mine;
  });
  return out;
}

TEST(LossScaling, ResumedRunsGoOnWithTheSameScaleAndCounterToTheBit) {
  for (const Grid& grid : {Grid{}, Grid{.tp = 2, .pp = 2}}) {
    SCOPED_TRACE(grid.name());
    const config::RunPlan plan = overflowing_plan(grid);
    const TempDir dir;
    const Trajectory whole = run(plan, dir.path(), 0, 24);
    EXPECT_GT(whole.state.updates, 4);
    EXPECT_LT(whole.state.updates, 20) << "some steps must overflow";
    for (const Index saved_at : {Index{3}, Index{17}, Index{19}}) {
      const TempDir saved;
      const Trajectory head = run(plan, saved.path(), 0, saved_at), tail = run(plan, saved.path(), saved_at, 24);
      Trajectory joined = head;
      joined.losses.insert(joined.losses.end(), tail.losses.begin(), tail.losses.end());
      joined.scales.insert(joined.scales.end(), tail.scales.begin(), tail.scales.end());
      // As bytes: the loss of a step that overflowed may be NaN.
      ASSERT_EQ(joined.losses.size(), whole.losses.size());
      EXPECT_EQ(std::memcmp(joined.losses.data(), whole.losses.data(), whole.losses.size() * sizeof(double)), 0);
      EXPECT_EQ(joined.scales, whole.scales);
      EXPECT_EQ(tail.state.loss_scale, whole.state.loss_scale);
      EXPECT_EQ(tail.state.clean_steps, whole.state.clean_steps);
      EXPECT_EQ(tail.state.updates, whole.state.updates);
      EXPECT_EQ(tail.kept, whole.kept);
    }
  }
}

}  // namespace
}  // namespace megalith
