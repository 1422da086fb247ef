// train.precision = "fp8" of models with experts on several GPUs.
#include <gtest/gtest.h>

#include "megalith/config/moe_rules.h"

#include "tests/gpu/echo_run.h"

namespace megalith {
namespace {

using support::expect_same_run;
using support::MoeGrid;
using support::run_on_gpus;

/// The least widths of which neither tp = 2 nor etp = 2 cuts a block; ranks differ in load.
config::RunPlan fp8_experts(const MoeGrid& grid, bool weight_grad) {
  config::RunConfig c = support::moe_config(grid, {"Skewed", [](config::RunConfig&) {}}, "fp8", 8);
  c.model.family = "llama";
  c.model.num_layers = 2;
  c.model.hidden_size = 256;
  c.model.head_dim = 64;
  c.model.seq_len = 128;
  c.moe.num_experts = 8;
  c.moe.ffn_hidden_size = 256;
  c.moe.shared_ffn_hidden_size = 256;
  c.moe.router_skew = 0.3;
  c.moe.pattern = "m";
  c.moe.dispatcher = "peer";
  c.fp8.experts = "all";
  c.fp8.weight_grad = weight_grad;
  c.device.type = "cuda";
  c.train.gemm = "heuristic";
  config::RunPlan plan = config::resolve(c);
  plan.model.moe.rank_capacity_factor = {};  // room for all rows
  return plan;
}

class GpuFp8Experts : public ::testing::TestWithParam<MoeGrid> {
 protected:
  void SetUp() override {
    MEGALITH_NEEDS_GPU_RANKS(GetParam().ranks);
    if (comm::ranks_are_processes()) GTEST_SKIP() << "these tests keep one record of all rank threads";
  }
};
INSTANTIATE_TEST_SUITE_P(All, GpuFp8Experts,
                         ::testing::Values(MoeGrid{1, 1, 1, 1, 1}, MoeGrid{2, 1, 1, 2, 1}, MoeGrid{2, 2, 1, 1, 2},
                                           MoeGrid{4, 2, 1, 2, 1}, MoeGrid{4, 1, 2, 2, 1}, MoeGrid{4, 1, 1, 4, 1}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(GpuFp8Experts, HaveTheSameBitsHoweverStepsAreMade) {
  for (const bool weight_grad : {false, true}) {
    SCOPED_TRACE(weight_grad);
    const config::RunPlan plan = fp8_experts(GetParam(), weight_grad);
    ASSERT_TRUE(plan.has_fp8_experts());
    const auto want = run_on_gpus(plan);
    expect_same_run(*run_on_gpus(plan), *want);
    config::RunPlan sent = plan, in_parts = plan, again = plan, from_graph = plan;
    sent.model.moe.dispatcher = nn::ExpertDispatcher::all_to_all;
    in_parts.model.moe.overlap = true;
    again.recompute.mode = nn::RecomputeMode::full;
    from_graph.graphs.mode = capture::GraphMode::iteration;
    from_graph.graphs.optimizer = true;
    ASSERT_EQ(config::why_no_iteration(from_graph), "");
    for (const config::RunPlan* const other : {&sent, &in_parts, &again, &from_graph}) {
      SCOPED_TRACE(other == &sent       ? "all_to_all"
                   : other == &in_parts ? "overlap"
                   : other == &again    ? "again"
                                        : "graph");
      expect_same_run(*run_on_gpus(*other), *want);
    }
  }
}

/// A clone has the operands of its expert. Only the sums of gradients of experts have another order.
TEST_P(GpuFp8Experts, ClonesChangeNothingButTheOrderOfSums) {
  if (GetParam().ep == 1) GTEST_SKIP() << "no rank could hold a clone";
  config::RunPlan plan = fp8_experts(GetParam(), false);
  const auto want = run_on_gpus(plan);
  plan.model.moe.echo = support::kClones;
  const auto got = run_on_gpus(plan);
  EXPECT_GT(got->clones, 0);
  EXPECT_EQ(got->losses[0], want->losses[0]);
  EXPECT_LE(support::relative_error(got->losses, want->losses), 2e-3);
  EXPECT_LE(support::relative_error(got->norms, want->norms), 5e-2);
  plan.graphs.mode = capture::GraphMode::iteration;
  plan.graphs.optimizer = true;
  expect_same_run(*run_on_gpus(plan), *got);
}

}  // namespace
}  // namespace megalith
