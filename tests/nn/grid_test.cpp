#include <gtest/gtest.h>

#include "tests/nn/layer_harness.h"

// Each parallel layer over tp ranks against one rank, in f64, and the communication it may cost.
namespace megalith {
namespace {

using testing::Gathered;
using testing::LayerParams;
using testing::SmallMicrobatch;

class Grid : public ::testing::TestWithParam<int> {};

/// Results of all ranks: replicated tensors under "name", parameter gradients as global tensors.
void put_gradients(Gathered& out, const ParamBuffer& params) {
  for (const Param& param : params.params()) {
    if (param.spec.slice.local.numel() > 0) out.put(param.spec.slice, param.without_padding(param.grad));
  }
}

void expect_same(const Gathered& got, const Gathered& want) {
  ASSERT_EQ(got.tensors().size(), want.tensors().size());
  for (const auto& [name, values] : want.tensors())
    EXPECT_LT(testing::relative_error(got.at(name), values), 1e-12) << name;
}

/// The forward pass in two halves of the batch, the second's steps between the first's.
void forward_in_halves(Exec& ex, const nn::TransformerBlock& block, const nn::Microbatch& whole, const Tensor& x,
                       const Tensor& y, nn::TransformerBlock::Saved& saved) {
  nn::Microbatch first = whole, second = whole;
  first.part = {0, 2};
  second.part = {1, 2};
  comm::Pending of_first = block.attend(ex, first, x, saved), of_second = block.attend(ex, second, x, saved);
  of_first.wait(ex);
  of_first = block.mix(ex, first, x, saved);
  of_second.wait(ex);
  of_second = block.mix(ex, second, x, saved);
  of_first.wait(ex);
  block.add_up(ex, first, y, saved);
  of_second.wait(ex);
  block.add_up(ex, second, y, saved);
}

enum class Forward { whole, halves };

void run_block(const comm::Group& tp, double dropout, Gathered& out, Forward forward = Forward::whole) {
  const nn::BlockConfig config = testing::small_block(dropout);
  std::vector<ParamSpec> specs;
  nn::TransformerBlock::declare(specs, "b", config, tp);
  LayerParams layer(std::move(specs));
  const nn::TransformerBlock block("b", 2, config, tp, layer.params);
  SmallMicrobatch microbatch;
  Exec ex;
  const Tensor x = testing::random_tensor(ex, {6, 8}, 1), dy = testing::random_tensor(ex, {6, 8}, 2);
  const Tensor y = ex.tensor({6, 8}, DType::f64), dx = ex.tensor({6, 8}, DType::f64);
  nn::TransformerBlock::Saved saved;
  if (forward == Forward::halves) {
    forward_in_halves(ex, block, microbatch.get(), x, y, saved);
  } else {
    block.forward(ex, microbatch.get(), x, y, saved);
  }
  block.backward(ex, microbatch.get(), dy, saved, dx);
  out.put("y", y);
  out.put("dx", dx);
  put_gradients(out, layer.params);
  const comm::Counter& calls = tp.counters()[comm::Op::all_reduce];
  const int forward_calls = forward == Forward::halves ? 4 : 2;
  EXPECT_EQ(calls.calls, tp.size() == 1 ? 0 : forward_calls + 2);  // forward g, backward f
  EXPECT_EQ(calls.elements, tp.size() == 1 ? 0 : 4 * 6 * 8);
}

TEST_P(Grid, BlockMatchesOneRankWithFourAllReduces) {
  for (const double dropout : {0.0, 0.3}) {
    Gathered want, got;
    comm::run_ranks(1, [&](comm::World& world) { run_block(world.all(), dropout, want); });
    comm::run_ranks(GetParam(), [&](comm::World& world) { run_block(world.all(), dropout, got); });
    expect_same(got, want);
  }
}

TEST_P(Grid, HalvesOfABatchGiveTheBitsOfTheWhole) {
  for (const double dropout : {0.0, 0.3}) {
    Gathered whole, halves;
    comm::run_ranks(GetParam(), [&](comm::World& world) { run_block(world.all(), dropout, whole); });
    comm::run_ranks(GetParam(), [&](comm::World& world) { run_block(world.all(), dropout, halves, Forward::halves); });
    EXPECT_EQ(halves.tensors(), whole.tensors());
  }
}

void run_ends(const comm::Group& tp, Gathered& out) {
  const nn::VocabShard vocab = nn::vocab_shard(13, 20, tp);  // 13 real ids: with tp 4 the last shard is padding only
  LayerParams layer({nn::token_table("table", vocab, 8, 1, Ownership::owner),
                     nn::replicated("position", {3, 8}, tp, Init::normal, 1),
                     {TensorSlice::whole("g", {8}), {8}, Init::ones},
                     {TensorSlice::whole("b", {8}), {8}}});
  const nn::VocabParallelEmbedding embedding(vocab, tp, layer.params.at("table"), layer.params.at("position"),
                                             {0.25, 5, 0});
  const nn::LmHead head(vocab, tp, nn::LayerNorm(layer.params.at("g"), layer.params.at("b"), 1e-5),
                        layer.params.at("table"));
  SmallMicrobatch microbatch;
  std::int32_t ids[] = {0, 12, 2, 7, 12, 5}, next[] = {12, 2, -1, 12, 5, 0};
  const Tensor tokens(ids, {6}, DType::i32), targets(next, {6}, DType::i32);
  double sum = 0;
  const Tensor loss_sum(&sum, {1}, DType::f64);
  Exec ex;
  const Tensor x = ex.tensor({6, 8}, DType::f64), dx = ex.tensor({6, 8}, DType::f64);
  embedding.forward(ex, microbatch.get(), tokens, x);
  nn::LmHead::Saved saved;
  out.put("loss", head.forward(ex, microbatch.get(), x, targets, loss_sum, saved));
  head.backward(ex, microbatch.get(), targets, saved, dx);
  embedding.backward_weight(ex, microbatch.get(), tokens, dx);
  out.put("x", x);
  out.put("dx", dx);
  out.put("loss_sum", loss_sum);
  put_gradients(out, layer.params);
  const comm::Counter& calls = tp.counters()[comm::Op::all_reduce];
  // Embedding forward b s h; output backward b s h; loss 3 b s in two calls; no logits are ever gathered.
  EXPECT_EQ(calls.calls, tp.size() == 1 ? 0 : 4);
  EXPECT_EQ(calls.elements, tp.size() == 1 ? 0 : 2 * 6 * 8 + 3 * 6);
  EXPECT_EQ(tp.counters()[comm::Op::all_gather].calls, 0);
}

TEST_P(Grid, EmbeddingAndHeadMatchOneRankAndExchangeOnlyScalarsOfTheLoss) {
  Gathered want, got;
  comm::run_ranks(1, [&](comm::World& world) { run_ends(world.all(), want); });
  comm::run_ranks(GetParam(), [&](comm::World& world) { run_ends(world.all(), got); });
  expect_same(got, want);
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, Grid, ::testing::Values(1, 2, 4));

TEST(ParamSpecs, SizesThatDoNotDivideAreNamed) {
  comm::run_ranks(2, [](comm::World& world) {
    try {
      nn::rows_split("layers.0.mlp.up.weight", 7, 4, world.all(), 1);
      FAIL() << "nothing was thrown";
    } catch (const ConfigError& error) {
      EXPECT_STREQ(
          error.what(),
          "E_DIM_NOT_DIVISIBLE: layers.0.mlp.up.weight rows = 7: must be divisible by the tensor-parallel size 2");
    }
    std::vector<ParamSpec> specs;
    nn::BlockConfig config = testing::small_block();
    config.num_heads = 1;
    EXPECT_THROW(nn::SelfAttention::declare(specs, "a", config, world.all()), ConfigError);
  });
}

}  // namespace
}  // namespace megalith
