// Graphs of whole iterations of models with experts, where no rank sends rows to another: the bits of eager steps.
#include "tests/io/temp_dir.h"
#include "tests/train/graph_ways.h"
#include "tests/train/moe_run.h"
#include "tests/train/saved_run.h"

namespace megalith {
namespace {

using support::GraphWay;
using support::MoeGrid;

constexpr Index kSteps = 50, kSavedAt = 23;

/// The run, or the run in two halves with a checkpoint between.
support::SavedRun trained(const config::RunPlan& plan, bool resumes) {
  const TempDir dir;
  support::SavedRun run;
  for (const Index end : resumes ? std::vector<Index>{kSavedAt, kSteps} : std::vector<Index>{kSteps}) {
    const auto begin = static_cast<Index>(run.losses.size());
    comm::run_ranks(plan.grid.world_size,
                    [&](comm::World& world) { support::train_saved(world, begin, end, plan, dir.path(), run); });
  }
  return run;
}

class MoeGraphs : public ::testing::TestWithParam<MoeGrid> {};
INSTANTIATE_TEST_SUITE_P(Grids, MoeGraphs,
                         ::testing::Values(MoeGrid{}, MoeGrid{2, 2, 1, 1, 2}, MoeGrid{2, 1, 2, 1, 1},
                                           MoeGrid{4, 1, 2, 1, 1, 2, nn::SequenceParallel::off, Sharding::optimizer}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(MoeGraphs, HaveTheBitsOfEagerSteps) {
  for (const support::MoeModel& model : support::moe_models()) {
    const bool is_short = std::string_view(model.name).starts_with("Shared") || model.name == std::string_view("Top1");
    for (const char* precision : {"fp32", "bf16"}) {
      if (is_short && precision == std::string_view("bf16")) continue;
      SCOPED_TRACE(std::string(model.name) + " " + precision);
      const config::RunPlan eager = config::resolve(support::moe_config(GetParam(), model, precision, kSteps));
      const support::SavedRun want = trained(eager, false);
      for (const GraphWay& way : {support::kPasses, support::kWholeSteps})
        support::expect_same(trained(support::with_graphs(eager, way, 3), way.optimizer), want);
    }
  }
}

}  // namespace
}  // namespace megalith
