#include "megalith/model/stage.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>

#include "megalith/base/error.h"
#include "megalith/ops/elementwise.h"

namespace megalith::model {
namespace {

ModelConfig small_model() {
  return {.num_layers = 4,
          .hidden_size = 16,
          .num_heads = 4,
          .ffn_hidden_size = 64,
          .seq_len = 8,
          .vocab_size = 50,
          .padded_vocab_size = 128};
}

comm::Mesh dry_mesh(std::unique_ptr<comm::World>& world, int rank, int tp, int pp, int dp = 1) {
  world = comm::dry_world(rank, tp * pp * dp);
  return comm::make_mesh(*world, grid::resolve({.world_size = tp * pp * dp, .tp = tp, .pp = pp}));
}

TEST(Stage, ActivationsFollowTheMicrobatchesInFlight) {
  std::unique_ptr<comm::World> world;
  std::vector<Index> bytes;
  for (int stage = 0; stage < 4; ++stage) {
    const comm::Mesh mesh = dry_mesh(world, stage, 1, 4);
    bytes.push_back(Stage({.model = small_model(), .global_batch = 16}, mesh).planned_bytes().at("activations"));
  }
  // 1F1B: stage r has 4 - r microbatches in flight; the inner stages hold the same layers.
  EXPECT_EQ(bytes[1] / 3, bytes[2] / 2);
  EXPECT_GT(bytes[0], bytes[1]);
}

// The logits of a step are activations. Those of an evaluation are scratch, but lie where a step has its activations.
TEST(Stage, AnEvaluationAddsNoScratch) {
  std::unique_ptr<comm::World> world;
  const Stage stage({.model = small_model()}, dry_mesh(world, 0, 1, 1));
  EXPECT_EQ(stage.planned_bytes().at(kScratchOwner), stage.plan_of(0).scratch_bytes);
}

TEST(Stage, SequenceParallelismShrinksActivationsAndMessages) {
  std::unique_ptr<comm::World> world;
  const comm::Mesh mesh = dry_mesh(world, 1, 2, 2);
  const Stage whole({.model = small_model(), .global_batch = 4}, mesh),
      shared({.model = small_model(), .sequence_parallel = nn::SequenceParallel::on, .global_batch = 4}, mesh);
  EXPECT_EQ(whole.boundary_shape(), (Shape{8, 16}));
  EXPECT_EQ(shared.boundary_shape(), (Shape{4, 16}));
  // Half of a layer's saved rows [8, 16] are outside the regions: what enters both of them and what the norms read and
  // give, at 2 microbatches in flight and 2 layers. The sums that leave are never kept.
  const Index rows = 8 * 16 * size_of(DType::f32);
  const Index saved = whole.planned_bytes().at("activations") - shared.planned_bytes().at("activations");
  EXPECT_GE(saved, 2 * 2 * 4 * rows / 2);
  EXPECT_EQ(whole.params().dense().numel(), shared.params().dense().numel());
}

TEST(Stage, TheTokenTableIsOnTheFirstAndTheLastStageAndOwnedOnce) {
  std::unique_ptr<comm::World> world;
  int holders = 0, owners = 0;
  for (int stage = 0; stage < 4; ++stage) {
    const comm::Mesh mesh = dry_mesh(world, stage, 1, 4);
    const Stage held({.model = small_model()}, mesh);
    for (const Param& param : held.params().dense().params()) {
      if (param.name() != kTokenTable) continue;
      ++holders;
      owners += grid::owns_in_copy(param.spec.placement, mesh.coordinates(grid::GridKind::dense)) ? 1 : 0;
      EXPECT_EQ(param.spec.slice.global, (Shape{50, 16}));  // without padding
      EXPECT_EQ(param.spec.held, (Shape{128, 16}));
    }
  }
  EXPECT_EQ(holders, 2);
  EXPECT_EQ(owners, 1);
}

/// The names of a pass's ops on one of two tensor-parallel ranks. phase: 0 forward, 1 backward.
std::vector<std::string> ops_of(nn::SequenceParallel sequence_parallel, int parts, std::size_t phase) {
  std::unique_ptr<comm::World> world;
  const Stage stage({.model = small_model(),
                     .sequence_parallel = sequence_parallel,
                     .sub_batches = parts,
                     .global_batch = 2,
                     .micro_batch = 2},
                    dry_mesh(world, 0, 2, 1));
  const std::vector<const char*>& ops = stage.plan_of(0).phases.at(phase).ops;
  return {ops.begin(), ops.end()};
}

/// For each op of this name, the `before` ops before it and the `after` ops after it.
std::vector<std::vector<std::string>> around(const std::string& name, const std::vector<std::string>& ops,
                                             std::ptrdiff_t before, std::ptrdiff_t after) {
  std::vector<std::vector<std::string>> all;
  for (auto it = ops.begin() + before; it < ops.end() - after; ++it) {
    if (*it != name) continue;
    all.emplace_back(it - before, it);
    all.back().insert(all.back().end(), it + 1, it + 1 + after);
  }
  return all;
}

TEST(Stage, TheOtherSubMicrobatchsGatherOverlapsWithAttention) {
  using Around = std::vector<std::vector<std::string>>;
  const std::size_t passes = 2 * 4;  // two parts through four layers
  const auto around_attention = [](nn::SequenceParallel sequence_parallel, int parts) {
    return around("attention", ops_of(sequence_parallel, parts, 0), 1, 2);
  };
  EXPECT_EQ(around_attention(nn::SequenceParallel::on, 2), Around(passes, {"all_gather", "matmul", "reduce_scatter"}));
  EXPECT_EQ(around_attention(nn::SequenceParallel::off, 2), Around(passes, {"matmul", "matmul", "all_reduce"}));
  EXPECT_EQ(around_attention(nn::SequenceParallel::on, 1), Around(passes / 2, {"matmul", "matmul", "reduce_scatter"}));
}

TEST(Stage, ARegionsGatherOverlapsWithTheWeightGradientOfTheOneBefore) {
  // Gathers of both sub-microbatches' gradients and inputs; the latter need not have arrived when the region's first
  // product begins.
  const std::vector<std::string> hidden{"all_gather", "all_gather", "all_gather", "all_gather",
                                        "matmul",     "wait",       "wait"};
  const std::vector<std::string> backward = ops_of(nn::SequenceParallel::on, 2, 1);
  const auto before_mlp = around("matmul_gelu_backward", backward, 7, 0);
  ASSERT_EQ(before_mlp.size(), 4U);
  for (std::size_t i = 1; i < before_mlp.size(); ++i) EXPECT_EQ(before_mlp[i], hidden) << i;  // 0: after the head
  for (auto ops : around("attention_backward", backward, 8, 0)) {
    EXPECT_EQ(ops.back(), "matmul");
    ops.pop_back();
    EXPECT_EQ(ops, hidden);
  }
}

/// The bits would not show it: a sum that is awaited before the weight gradients is the same sum.
TEST(Stage, TheReductionOfAnInputGradientOverlapsWithWeightGradients) {
  using Around = std::vector<std::vector<std::string>>;
  for (const int parts : {1, 2}) {
    SCOPED_TRACE(parts);
    const std::vector<std::string> backward = ops_of(nn::SequenceParallel::off, parts, 1);
    // The gradient of the region's input, its sum, both weight gradients, and only then the wait.
    EXPECT_EQ(around("matmul_gelu_backward", backward, 0, 6),
              Around(4, {"matmul", "all_reduce", "matmul", "matmul", "wait", "norm_backward"}));
    EXPECT_EQ(around("attention_backward", backward, 1, 6),
              Around(4, {"matmul", "matmul", "all_reduce", "matmul", "matmul", "wait", "norm_backward"}));
    const auto sums = around("all_reduce", backward, 1, 3);
    ASSERT_EQ(sums.size(), 2U * 4 + 1);
    EXPECT_EQ(sums.front(), (std::vector<std::string>{"matmul", "matmul", "wait", "norm_backward"})) << "the head";
  }
}

/// A GPU loads and chooses in these passes. On a CPU only what they leave shows that they ran.
TEST(Stage, AWarmUpRunsEveryPassAndKeepsTheParameters) {
  const std::unique_ptr<comm::World> world = comm::dry_world(0, 1);
  Stage stage({.model = small_model(), .global_batch = 2}, comm::make_mesh(*world, grid::resolve({})));
  MemoryLedger ledger(Device::cpu);
  stage.allocate(ledger);
  ParamBuffer& params = stage.params().dense();
  Exec ex;
  ops::fill(ex, params.values(), 0.5);
  ops::OptimizerState state;
  stage.warm_up(ex, Tensor(&state, {sizeof state}, DType::u8));
  // The parameters are alike, so all tokens are equally probable: ln(50) for each of 8 tokens, in the evaluation.
  EXPECT_NEAR(stage.loss_sums().span<double>()[0], 8 * std::log(50.0), 1e-3);
  for (const Param& param : params.params()) {
    if (param.name() != kTokenTable) continue;
    const std::span<const float> grad = param.grad.span<float>();
    EXPECT_TRUE(std::ranges::any_of(grad, [](float x) { return x != 0; })) << "of the backward passes";
  }
  EXPECT_THAT(params.values().span<float>(), testing::Each(0.5f));
  EXPECT_EQ(stage.moe().routing, nn::Routing::by_score);
}

TEST(Stage, BatchesThatDoNotDivideAreRefused) {
  std::unique_ptr<comm::World> world;
  const comm::Mesh mesh = dry_mesh(world, 0, 1, 1, 2);
  EXPECT_THROW(Stage({.model = small_model(), .global_batch = 3}, mesh), ConfigError);
}

}  // namespace
}  // namespace megalith::model
