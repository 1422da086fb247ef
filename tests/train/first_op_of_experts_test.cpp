// The first op whose result is not finite, in models with experts: their ops write parts of tensors, on each rank
// others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/train/first_op.h"

#include "tests/train/error_on_ranks.h"
#include "tests/train/moe_run.h"
#include "tests/train/skipped_steps.h"

namespace megalith {
namespace {

using support::MoeGrid;
using support::MoeModel;
using ::testing::ContainsRegex;

/// A model with experts on a grid, and what else is set.
struct ExpertCase {
  std::string name;
  config::RunConfig recipe;
};

ExpertCase expert_case(
    const MoeGrid& grid, const std::string& model, const char* precision = "fp32",
    void (*set)(config::RunConfig&) = [](config::RunConfig&) {}) {
  const MoeModel& of = *std::ranges::find(support::moe_models(), model, &MoeModel::name);
  ExpertCase c{grid.name() + " " + model + " " + precision, support::moe_config(grid, of, precision, 4)};
  c.recipe.model.dropout = 0;
  set(c.recipe);
  return c;
}

void by_peers(config::RunConfig& c) { c.moe.dispatcher = "peer"; }
void by_messages(config::RunConfig& c) { c.moe.dispatcher = "all_to_all"; }
void with_clones(config::RunConfig& c) {
  c.moe.dispatcher = "peer";
  c.moe.echo.slots = 2;
  c.moe.echo.min_pairs = 1;
  c.moe.router_skew = 2;
}
/// Steps are run again in rounds.
void with_few_rows(config::RunConfig& c) {
  c.moe.dispatcher = "peer";
  c.moe.rank_capacity_factor = "2";
  c.moe.router_skew = 4;
}

/// All dispatchers, capacities, slices of experts, stages and recomputation.
std::vector<ExpertCase> expert_cases() {
  return {expert_case({}, "Top2"),
          expert_case({}, "SharedWithGate", "bf16"),
          expert_case({}, "Drop"),
          expert_case({}, "SigmoidWithBias", "fp64"),
          expert_case({2, 1, 1, 2, 1}, "Top2", "fp32", by_messages),
          expert_case({2, 1, 1, 2, 1}, "Top2", "bf16", by_peers),
          expert_case({4, 1, 1, 4, 1}, "Pad", "fp32", by_messages),
          expert_case({4, 1, 1, 4, 1}, "LossOfSequences", "fp32", by_peers),
          expert_case({4, 1, 1, 4, 1}, "Top2", "fp32", with_clones),
          expert_case({4, 1, 1, 4, 1}, "Top2", "fp32", with_few_rows),
          expert_case({4, 2, 1, 2, 2}, "DropIndentedText", "fp32", by_peers),
          expert_case({4, 2, 1, 2, 1}, "GlobalLoss", "fp32", by_messages),
          expert_case({4, 1, 2, 2, 1, 2}, "DenseAndExperts", "bf16", by_peers),
          expert_case({4, 1, 1, 1, 2}, "Top1", "fp32", by_messages),
          expert_case({2, 1, 1, 2, 1}, "SharedGelu", "fp32", [](config::RunConfig& c) { c.recompute.mode = "full"; })};
}

// Of a finite step no op is named, whatever memory held before: all of it is NaN.
TEST(FirstOpOfExperts, NoOpOfAFiniteStepIsNamed) {
  for (const ExpertCase& c : expert_cases()) {
    SCOPED_TRACE(c.name);
    const config::RunPlan plan = config::resolve(c.recipe);
    const std::string error = support::error_on_ranks(plan, [&](train::Engine& engine) {
      std::ranges::fill(engine.stage().work(), std::byte{0xff});
      engine.exec().fill_new_tensors(NewTensors::zero);
      train::FirstOpFinder finder(engine.stage(), 60);
      const support::HashedBatches source(plan.model.vocab_size);
      engine.exec().watched(finder, [&] { EXPECT_TRUE(engine.step(source, {0, 0}, train::Stop::no).finite); });
      EXPECT_EQ(finder.found().text, "");
    });
    EXPECT_EQ(error, "");
  }
}

/// A number of an expert's weight becomes infinite if this rank holds it, in the copy that layers read. Returns whether
/// it does.
bool break_expert(train::Engine& engine, const std::string& name, Index expert) {
  Param* const param = engine.stage().params().find(name);
  if (param == nullptr) return false;
  const TensorSlice& slice = param->spec.slice;
  const Index local = expert - slice.offset[0];
  if (local < 0 || local >= slice.local[0]) return false;
  const Tensor weight = param->value.rows(local, 1);
  ops::fill(engine.exec(), weight.reshaped({weight.numel()}).rows(0, 1), std::numeric_limits<double>::infinity());
  return true;
}

TEST(FirstOpOfExperts, IsTheirGemmOnARankThatHoldsTheExpert) {
  for (const ExpertCase& c : expert_cases()) {
    SCOPED_TRACE(c.name);
    const config::RunPlan plan = config::resolve(c.recipe);
    const Index expert = plan.model.moe.router_skew > 0 ? 0 : 5;  // one that has tokens
    std::vector<std::uint8_t> holds(static_cast<std::size_t>(plan.grid.world_size));
    const std::string error = support::error_on_ranks(plan, [&](train::Engine& engine) {
      const support::HashedBatches source(plan.model.vocab_size);
      engine.step(source, {0, 0}, train::Stop::no);
      std::ranges::fill(engine.stage().work(), std::byte{0xff});  // what no op writes is not its result
      holds[static_cast<std::size_t>(engine.world().rank())] =
          break_expert(engine, "layers.1.moe.experts.up.weight", expert) ? 1 : 0;
      engine.step(source, {1, plan.train.global_batch}, train::Stop::no);
    });
    EXPECT_THAT(error, ContainsRegex("on rank [0-9]+ layers.1.moe.experts.up.weight = -?inf; first in "
                                     "[a-z_]*matmul[a-z_]* .forward, chunk [01], microbatch [0-9]+, layer 1. on rank "
                                     "[0-9]+; parameters stay those of step 1"));
    const std::string before = "layer 1) on rank ";
    const std::size_t at = error.find(before);
    if (at == std::string::npos || plan.model.moe.echo.slots > 0) continue;  // its clones are infinite, too
    EXPECT_EQ(holds.at(static_cast<std::size_t>(error[at + before.size()] - '0')), 1)
        << "a rank that has the expert, and none that receives its rows: " << error;
  }
}

// Gradients of one rank are NaN from the loss on.
TEST(FirstOpOfExperts, OfBackwardPassesIsWhereTheyBegin) {
  const config::RunPlan plan = config::resolve(expert_case({4, 1, 2, 2, 1}, "Top2").recipe);
  const std::string error = support::error_on_ranks(plan, [&](train::Engine& engine) {
    if (engine.world().rank() == 3) support::break_gradients(engine);
    engine.step(support::HashedBatches(plan.model.vocab_size), {0, 0}, train::Stop::no);
  });
  EXPECT_THAT(error, ContainsRegex("; first in [^ ]+ .(forward|backward), chunk 0, microbatch 0. on rank 3; "));
}

}  // namespace
}  // namespace megalith
