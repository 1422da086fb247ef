// train.precision = "fp8" of models with experts: grids, dispatchers, clones, recomputation, graphs and steps that run
// again in rounds (docs/numerics.md).
#include "tests/train/moe_run.h"
#include "tests/train/recompute_modes.h"

namespace megalith {
namespace {

using support::MoeGrid;
using support::relative_error;
using support::RunRecord;

/// The least widths of which neither tp = 2 nor etp = 2 cuts a block.
config::RunConfig fp8_experts(const MoeGrid& grid, const std::string& family = "llama") {
  config::RunConfig c = support::moe_config(grid, {"", [](config::RunConfig&) {}}, "fp8", 3);
  c.model.family = family;
  c.model.num_layers = 2;
  c.model.hidden_size = 256;
  if (family == "gpt2") {
    c.model.num_kv_heads.reset();
    c.model.head_dim.reset();
  } else {
    c.model.head_dim = 64;
  }
  c.model.dropout = 0;
  c.model.seq_len = 64;  // a microbatch of one block, for weight gradients of dense GEMMs
  c.moe.num_experts = 4;
  c.moe.ffn_hidden_size = 256;
  c.moe.pattern = "m";
  c.fp8.experts = "all";
  c.train.global_batch = 8;
  return c;
}

std::unique_ptr<RunRecord> trained(const config::RunConfig& c) {
  auto record = std::make_unique<RunRecord>();
  support::run_moe(config::resolve(c), *record);
  return record;
}

void expect_same_bits(const RunRecord& got, const RunRecord& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_TRUE(got.parameters.tensors() == want.parameters.tensors());
}

/// Below the width from which on FP8 is faster attention and shared experts have FP8 operands, experts those of bf16.
TEST(Fp8Expert, NarrowOnesAreInBf16) {
  config::RunConfig all = fp8_experts({2, 1, 1, 2, 1}), narrow = all;
  narrow.fp8.experts = "wide";
  narrow.moe.ffn_hidden_size = all.moe.ffn_hidden_size = 128;
  config::RunConfig none = narrow, in_bf16 = narrow;
  none.fp8.experts = "none";
  in_bf16.train.precision = "bf16";
  const auto got = trained(narrow);
  expect_same_bits(*trained(none), *got);
  for (const config::RunConfig* const other : {&all, &in_bf16}) {
    const auto want = trained(*other);
    EXPECT_NE(got->losses[0], want->losses[0]);
    EXPECT_LE(relative_error(got->losses, want->losses), 5e-3);
  }
  narrow.moe.ffn_hidden_size = 72;  // FP8 would cut its blocks
  narrow.moe.dispatcher = "all_to_all";
  const auto sent = trained(narrow);
  narrow.moe.dispatcher = "peer";
  expect_same_bits(*trained(narrow), *sent);
}

class Fp8Experts : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Fp8Experts, ::testing::Values("gpt2", "llama"),
                         [](const auto& test) { return test.param; });

TEST_P(Fp8Experts, TrainAsBf16Does) {
  config::RunConfig c = fp8_experts({}, GetParam()), in_bf16 = c;
  in_bf16.train.precision = "bf16";
  const auto bf16 = trained(in_bf16), fp8 = trained(c);
  c.fp8.weight_grad = true;
  const auto all_gemms = trained(c);
  for (const RunRecord* const got : {fp8.get(), all_gemms.get()}) {
    EXPECT_LE(relative_error(got->losses, bf16->losses), 5e-3);
    EXPECT_LE(relative_error(got->norms, bf16->norms), 0.1);
    EXPECT_NE(got->losses[0], bf16->losses[0]);
  }
  EXPECT_EQ(all_gemms->losses[0], fp8->losses[0]);
  EXPECT_NE(all_gemms->norms[0], fp8->norms[0]);
}

/// Under the decisions of one rank: rounding in another order may change a choice.
TEST_P(Fp8Experts, GridsAgreeWithOneRank) {
  const config::RunPlan one_rank = config::resolve(fp8_experts({}, GetParam()));
  support::KeptDecisions decisions(one_rank, nn::RouterDecisions::Use::record);
  RunRecord want;
  support::run_moe(one_rank, want, &decisions);
  for (const MoeGrid& grid : {MoeGrid{2, 1, 1, 2, 1}, MoeGrid{4, 1, 2, 2, 1}, MoeGrid{2, 2, 1, 1, 2},
                              MoeGrid{4, 2, 1, 2, 1}, MoeGrid{4, 2, 1, 2, 2, 1, nn::SequenceParallel::on},
                              MoeGrid{4, 1, 1, 2, 1, 1, nn::SequenceParallel::off, Sharding::optimizer}}) {
    SCOPED_TRACE(grid.name());
    RunRecord got;
    support::run_replayed(config::resolve(fp8_experts(grid, GetParam())), decisions, got);
    if (grid.tp == 1) {
      EXPECT_EQ(got.losses[0], want.losses[0]);
    }
    EXPECT_LE(relative_error(got.losses, want.losses), 2e-3);
    EXPECT_LE(relative_error(got.norms, want.norms), 5e-2);
  }
}

TEST(Fp8Expert, RowsHaveTheSameBitsHoweverTheyMove) {
  for (const bool weight_grad : {false, true}) {
    config::RunConfig c = fp8_experts({4, 1, 1, 2, 1});
    c.fp8.weight_grad = weight_grad;
    c.moe.shared_ffn_hidden_size = 256;
    c.moe.dispatcher = "all_to_all";
    const auto want = trained(c);
    c.moe.dispatcher = "peer";
    expect_same_bits(*trained(c), *want);
    c.moe.overlap = true;
    expect_same_bits(*trained(c), *want);
  }
}

/// Where ranks exchange rows, and on one rank, which rounds rows while it permutes them.
TEST(Fp8Expert, RecomputationAndGraphsChangeNoBit) {
  for (const MoeGrid& grid : {MoeGrid{2, 1, 1, 2, 1}, MoeGrid{}}) {
    for (const bool weight_grad : {false, true}) {
      config::RunConfig c = fp8_experts(grid);
      c.fp8.weight_grad = weight_grad;
      if (grid.ranks > 1) c.moe.dispatcher = "peer";
      const auto want = trained(c);
      for (const std::vector<std::string>& modules :
           {std::vector<std::string>{"mlp"}, {"dispatch"}, {"norms", "mlp", "dispatch"}}) {
        SCOPED_TRACE(grid.name() + " " + modules.front());
        config::RunConfig again = c;
        again.recompute.mode = "selective";
        again.recompute.modules = modules;
        expect_same_bits(*trained(again), *want);
      }
      config::RunConfig full = c, from_graphs = c;
      full.recompute.mode = "full";
      expect_same_bits(*trained(full), *want);
      from_graphs.graphs.mode = "iteration";
      from_graphs.graphs.warmup_steps = 1;
      expect_same_bits(*trained(from_graphs), *want);
    }
  }
}

/// A clone has the operands of its expert: all but the order of its expert's gradient's sums is as without clones.
TEST(Fp8Expert, ClonesChangeNothingButTheOrderOfSums) {
  config::RunConfig c = fp8_experts({4, 1, 1, 4, 1});
  c.moe.router_skew = 1;
  const auto want = trained(c);
  c.moe.echo.slots = 2;
  c.moe.echo.min_pairs = 0;
  const auto got = trained(c);
  EXPECT_EQ(got->losses[0], want->losses[0]);
  EXPECT_LE(relative_error(got->losses, want->losses), 1e-4);
  EXPECT_LE(relative_error(got->norms, want->norms), 1e-3);
  for (const char* const weights : {"keep", "redispatch"}) {
    c.moe.echo.weights = weights;
    expect_same_bits(*trained(c), *got);
  }
}

/// A router that sends all to two experts: steps run again in rounds, with the bits of room for all rows.
TEST(Fp8Expert, StepsThatRunAgainHaveTheBitsOfRoomForAllRows) {
  for (const bool weight_grad : {false, true}) {
    config::RunConfig c = fp8_experts({4, 1, 1, 4, 1});
    c.fp8.weight_grad = weight_grad;
    c.moe.router_skew = 50;
    c.moe.aux_loss = 0;
    c.moe.rank_capacity_factor = "worst";
    const auto want = trained(c);
    c.moe.rank_capacity_factor = "2";
    const auto got = trained(c);
    expect_same_bits(*got, *want);
  }
}

}  // namespace
}  // namespace megalith
