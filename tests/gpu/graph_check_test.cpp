// graphs.check on GPUs: what differs from an eager step is named.
#include "tests/comm/gpu_ranks.h"
#include "tests/gpu/gpu_plan.h"
#include "tests/support/twin.h"
#include "tests/train/differing_steps.h"

namespace megalith {
namespace {

using testing::Grid;
using testing::kMeddled;

config::RunPlan plan_of(const Grid& grid, const testing::GraphWay& way) {
  config::RunPlan plan = testing::with_graphs(testing::gpu_plan(grid, "bf16", 8), way, testing::kCheckWarmup);
  plan.graphs.check_steps = 8;
  return plan;
}

std::string error_of(const config::RunPlan& plan, const testing::MeddleWithStep& meddle,
                     const model::BatchSource& source) {
  return testing::error_of([](int size, const auto& body) { comm::run_gpu_ranks(size, body); }, plan, meddle, source);
}

class GpuDifferingSteps : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(All, GpuDifferingSteps, ::testing::Values(Grid{}, Grid{.tp = 2}, Grid{.pp = 2}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(GpuDifferingSteps, AreNamedByTheFirstResultThatDiffers) {
  const Grid grid = GetParam();
  MEGALITH_NEEDS_GPUS(grid.ranks());
  const int last = grid.ranks() - 1;  // of the last stage
  for (const testing::GraphWay& way : testing::kGraphWays) {
    const config::RunPlan plan = plan_of(grid, way);
    const auto meddle = [&](train::Engine& engine, int rank, Index step) {
      if (rank == last && step == kMeddled)
        testing::swap_views(engine, "layers.5.norm1.weight", "layers.5.norm2.weight", &Param::value);
    };
    const std::string error = error_of(plan, meddle, testing::HashedBatches(plan.model.vocab_size));
    EXPECT_TRUE(error.starts_with(str("rank ", last, ": [graphs] step ", kMeddled + 1, ": result of ")))
        << way.name << ": " << error;
    // By the norm's op, alone or as the end of the layer before. Graphs of layers are looked at one by one; of a whole
    // step's graph, memory is at the end.
    const bool by_piece = way.mode == capture::GraphMode::layers;
    EXPECT_NE(error.find(by_piece ? "layer_norm, chunk 0, microbatch 0, layer 5 is another" : "layer_norm, chunk 0, "),
              std::string::npos)
        << way.name << ": " << error;
    if (!by_piece) {
      EXPECT_NE(error.find(", layer 5 at byte "), std::string::npos) << way.name << ": " << error;
    }
  }
}

TEST_P(GpuDifferingSteps, AreNamedByTheGradientWhereResultsAgree) {
  const Grid grid = GetParam();
  MEGALITH_NEEDS_GPUS(grid.ranks());
  const config::RunPlan plan = plan_of(grid, testing::kLayers);
  const testing::MeddlingBatches source(plan.model.vocab_size);
  static constexpr float kOther = 7;
  const auto meddle = [&](train::Engine& engine, int rank, Index step) {
    if (rank != 0 || step != kMeddled) return;
    source.expect(testing::last_of_eager_run(plan), [&](std::span<std::int32_t>) {
      engine.exec().copy(engine.stage().params().at("layers.1.norm2.weight").grad.raw(), &kOther, sizeof kOther);
    });
  };
  // While the last microbatch goes forward through the first of two stages, the one before is next in the backward
  // pass.
  const Index last = plan.train.global_batch / plan.train.micro_batch - 1;
  const std::string error = error_of(plan, meddle, source);
  EXPECT_TRUE(error.starts_with(str("rank 0: [graphs] step ", kMeddled + 1,
                                    ": gradient of layers.1.norm2.weight, chunk 0, microbatch ",
                                    grid.pp == 1 ? last : last - 1, ", layer 1 is another")))
      << error;
}

}  // namespace
}  // namespace megalith
