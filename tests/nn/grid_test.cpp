#include <gtest/gtest.h>

#include "megalith/nn/self_attention.h"

#include "tests/nn/layer_harness.h"

// Each parallel layer over tp ranks against one rank, in f64, and the communication it may cost.
namespace megalith {
namespace {

using support::Gathered;
using support::LayerParams;
using support::SmallMicrobatch;

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
    EXPECT_LT(support::relative_error(got.at(name), values), 1e-12) << name;
}

constexpr Index kTokens = 8, kHidden = 8, kSeqLen = 4;  // of 2 samples, so that shares of them end within a sample

/// How a layer's rows stand outside its regions, and in how many sub-microbatches the forward pass takes them.
struct Cut {
  nn::SequenceParallel sequence_parallel = nn::SequenceParallel::off;
  int sub_batches = 1;
  nn::TensorParallel over(const comm::Group& tp) const { return {tp, sequence_parallel, sub_batches}; }
};

/// The runs of neighbouring rows [T, columns] that a rank holds outside, one after the other in `held`.
struct Run {
  TensorSlice slice;
  Tensor held;
};
std::vector<Run> runs_of(const std::string& name, const Tensor& held, const nn::TensorParallel& tp) {
  const Index columns = held.dim(1);
  if (tp.sequence_parallel() == nn::SequenceParallel::off) return {{TensorSlice::whole(name, held.shape()), held}};
  std::vector<Run> runs;
  for (nn::SubBatch sub_batch{0, tp.sub_batches()}; sub_batch.index < sub_batch.count; ++sub_batch.index) {
    const Tensor rows = sub_batch.of(held);
    const Index first = sub_batch.index * kTokens / sub_batch.count + tp.group().rank() * rows.dim(0);
    runs.push_back({{name, {kTokens, columns}, {first, 0}, rows.shape()}, rows});
  }
  return runs;
}

/// A rank's rows of a random [T, H] that does not depend on the grid.
Tensor random_rows(Exec& ex, std::uint64_t stream, const nn::TensorParallel& tp) {
  const Tensor all = support::random_tensor(ex, {kTokens, kHidden}, stream);
  const Tensor held = ex.tensor({tp.rows_outside(kTokens), kHidden}, DType::f64);
  for (const Run& run : runs_of("", held, tp)) ops::copy(ex, all.rows(run.slice.offset[0], run.held.dim(0)), run.held);
  return held;
}

void put_rows(Gathered& out, const std::string& name, const Tensor& held, const nn::TensorParallel& tp) {
  for (const Run& run : runs_of(name, held, tp)) out.put(run.slice, run.held);
}

/// What GradReducer does for gradients that have seen a share of the rows.
void sum_partial_gradients(Exec& ex, const ParamBuffer& params, const nn::TensorParallel& tp) {
  const Tensor partial = params.partial_grads();
  EXPECT_EQ(partial.numel() > 0, tp.sequence_parallel() == nn::SequenceParallel::on);
  if (partial.numel() > 0) comm::all_reduce(ex, tp.group(), partial, comm::Reduce::sum).wait(ex);
}

void expect_messages_of_a_block(const nn::TensorParallel& tp) {
  const comm::Counters& calls = tp.group().counters();
  const comm::Counter &sums = calls[comm::Op::all_reduce], &gathers = calls[comm::Op::all_gather],
                      &scatters = calls[comm::Op::reduce_scatter];
  const Index ranks = tp.group().size(), sub_batches = tp.sub_batches();
  if (tp.sequence_parallel() == nn::SequenceParallel::off) {
    EXPECT_EQ(sums.calls, ranks == 1 ? 0 : 2 * sub_batches + 2);  // forward g, backward f
    EXPECT_EQ(sums.elements, ranks == 1 ? 0 : 4 * kTokens * kHidden);
    EXPECT_EQ(gathers.calls + scatters.calls, 0);
    return;
  }
  // Rows are gathered for and scattered after both regions, gradients too, and backward gathers the inputs once more.
  EXPECT_EQ(gathers.calls, 6 * sub_batches);
  EXPECT_EQ(gathers.elements, 6 * kTokens / ranks * kHidden);
  EXPECT_EQ(scatters.calls, 4 * sub_batches);
  EXPECT_EQ(scatters.elements, 4 * kTokens * kHidden);
  EXPECT_EQ(sums.calls, 0);
}

/// Sizes and parts of a layer, and where its norms are.
struct Block {
  nn::GptLayerConfig config;
  nn::NormPlacement placement = nn::NormPlacement::pre;
};

void run_block(const comm::Group& group, const Block& of, Gathered& out, const Cut& cut = {}) {
  const nn::GptLayerConfig& config = of.config;
  const nn::TensorParallel tp = cut.over(group);
  LayerParams layer(support::GptLayers::specs("b", 1, config, tp));
  const nn::SublayerStack block = support::GptLayers::stack("b", 2, 1, config, tp, layer.params, of.placement);
  SmallMicrobatch microbatch{.seq_len = kSeqLen};
  Exec ex;
  microbatch.make_rope_table(ex, config);
  const Tensor x = random_rows(ex, 1, tp), dy = random_rows(ex, 2, tp);
  const Tensor y = ex.tensor(x.shape(), DType::f64), dx = ex.tensor(x.shape(), DType::f64);
  nn::SublayerStack::Saved saved = block.make_saved();
  block.forward(ex, microbatch.get(), x, y, saved);
  block.backward(ex, microbatch.get(), {dy}, dx, saved);
  expect_messages_of_a_block(tp);
  sum_partial_gradients(ex, layer.params.dense(), tp);
  put_rows(out, "y", y, tp);
  put_rows(out, "dx", dx, tp);
  put_gradients(out, layer.params.dense());
}

/// GPT-2's and Llama's, with and without dropout, pre-norm and post-norm.
std::vector<Block> blocks() {
  std::vector<Block> all;
  for (const nn::NormPlacement placement : {nn::NormPlacement::pre, nn::NormPlacement::post}) {
    for (const double dropout : {0.0, 0.3}) {
      all.push_back({support::small_block(dropout), placement});
      all.push_back({support::small_llama_block(dropout), placement});
    }
  }
  all.back().config.activation = nn::Activation::gelu_erf;
  return all;
}

TEST_P(Grid, BlockMatchesOneRankWithFourAllReduces) {
  for (const Block& config : blocks()) {
    Gathered want, got;
    comm::run_ranks(1, [&](comm::World& world) { run_block(world.all(), config, want); });
    comm::run_ranks(GetParam(), [&](comm::World& world) { run_block(world.all(), config, got); });
    expect_same(got, want);
  }
}

TEST_P(Grid, SubMicrobatchesGiveTheBitsOfTheWhole) {
  for (const Block& config : blocks()) {
    Gathered whole, halves;
    comm::run_ranks(GetParam(), [&](comm::World& world) { run_block(world.all(), config, whole); });
    comm::run_ranks(GetParam(),
                    [&](comm::World& world) { run_block(world.all(), config, halves, {.sub_batches = 2}); });
    EXPECT_EQ(halves.tensors(), whole.tensors());
  }
}

/// Sharing rows changes the bits of nothing but the norms' gradients, whose sums over rows are cut otherwise.
void expect_same_bits_but_of_norms(const Gathered& got, const Gathered& want, std::string_view norm) {
  expect_same(got, want);
  for (const auto& [name, values] : want.tensors()) {
    if (name.find(norm) != std::string::npos) continue;
    EXPECT_EQ(got.at(name), values) << name;
  }
}

TEST_P(Grid, SequenceParallelBlocksGiveTheBitsOfOthers) {
  for (const Block& config : blocks()) {
    for (const int sub_batches : {1, 2}) {
      Gathered whole, shared;
      comm::run_ranks(GetParam(), [&](comm::World& world) { run_block(world.all(), config, whole); });
      comm::run_ranks(GetParam(), [&](comm::World& world) {
        run_block(world.all(), config, shared,
                  {.sequence_parallel = nn::SequenceParallel::on, .sub_batches = sub_batches});
      });
      expect_same_bits_but_of_norms(shared, whole, ".norm");
    }
  }
}

void expect_messages_of_the_ends(const nn::TensorParallel& tp) {
  const comm::Counters& calls = tp.group().counters();
  const comm::Counter &sums = calls[comm::Op::all_reduce], &gathers = calls[comm::Op::all_gather],
                      &scatters = calls[comm::Op::reduce_scatter];
  const Index ranks = tp.group().size(), sub_batches = tp.sub_batches(), rows = kTokens * kHidden;
  // Embedding forward b s h; output backward b s h; loss 3 b s in two calls; no logits are ever gathered.
  const bool whole = tp.sequence_parallel() == nn::SequenceParallel::off;
  EXPECT_EQ(sums.calls, ranks == 1 ? 0 : whole ? 4 : 2);
  EXPECT_EQ(sums.elements, ranks == 1 ? 0 : (whole ? 2 * rows : 0) + 3 * kTokens);
  // Into the output forward, again backward, and the embedding's gradient.
  EXPECT_EQ(gathers.calls, whole ? 0 : 3 * sub_batches);
  EXPECT_EQ(gathers.elements, whole ? 0 : 3 * rows / ranks);
  EXPECT_EQ(scatters.calls, whole ? 0 : 2 * sub_batches);
  EXPECT_EQ(scatters.elements, whole ? 0 : 2 * rows);
}

void run_ends(const comm::Group& group, Gathered& out, const Cut& cut = {},
              nn::NormPlacement placement = nn::NormPlacement::pre) {
  const nn::TensorParallel tp = cut.over(group);
  // 13 real ids: with tp 4 the last shard is padding only.
  const nn::VocabShard vocab = nn::vocab_shard(13, 20, group);
  std::vector<ParamSpec> specs = {nn::token_table("table", vocab, kHidden, 1),
                                  nn::replicated("position", {kSeqLen, kHidden}, group, Init::normal, 1),
                                  nn::replicated("types", {2, kHidden}, group, Init::normal, 1)};
  const nn::NormSpec norm{"norm"};
  nn::Norm::declare(specs, norm, kHidden, tp);
  LayerParams layer(std::move(specs));
  const auto norm_of = [&](nn::NormPlacement one) {
    return one == placement ? std::optional(nn::Norm(norm, layer.params)) : std::nullopt;
  };
  const nn::VocabParallelEmbedding embedding(vocab, tp,
                                             {.table = layer.params.at("table"),
                                              .position = layer.params.find("position"),
                                              .types = layer.params.find("types"),
                                              .dropout = {0.25, 5, 0},
                                              .norm = norm_of(nn::NormPlacement::post)});
  const nn::LmHead head(vocab, tp, norm_of(nn::NormPlacement::pre), layer.params.at("table"));
  nn::VocabParallelEmbedding::Saved embedded;
  SmallMicrobatch microbatch{.seq_len = kSeqLen};
  std::int32_t ids[kTokens] = {0, 12, 2, 7, 12, 5, 5, 1}, next[kTokens] = {12, 2, -1, 12, 5, 0, 1, 3};
  std::int32_t types[kTokens] = {0, 0, 0, 1, 0, 1, 1, 1};
  const nn::VocabParallelEmbedding::Ids tokens{.tokens = Tensor(ids, {kTokens}, DType::i32),
                                               .types = Tensor(types, {kTokens}, DType::i32)};
  const Tensor targets(next, {kTokens}, DType::i32);
  double sum = 0;
  const Tensor loss_sum(&sum, {1}, DType::f64);
  Exec ex;
  const Shape rows{tp.rows_outside(kTokens), kHidden};
  const Tensor x = ex.tensor(rows, DType::f64), dx = ex.tensor(rows, DType::f64);
  embedding.forward(ex, microbatch.get(), tokens, x, embedded);
  const std::unique_ptr<nn::Head::Saved> saved = head.make_saved();
  const nn::HeadInputs inputs{targets, loss_sum};
  out.put("loss", head.forward(ex, microbatch.get(), x, inputs, *saved));
  head.backward(ex, microbatch.get(), inputs, *saved, {dx});
  embedding.backward_weight(ex, microbatch.get(), tokens, dx, embedded);
  expect_messages_of_the_ends(tp);
  sum_partial_gradients(ex, layer.params.dense(), tp);
  put_rows(out, "x", x, tp);
  put_rows(out, "dx", dx, tp);
  out.put("loss_sum", loss_sum);
  put_gradients(out, layer.params.dense());
}

TEST_P(Grid, EmbeddingAndHeadMatchOneRankAndExchangeOnlyScalarsOfTheLoss) {
  for (const nn::NormPlacement placement : {nn::NormPlacement::pre, nn::NormPlacement::post}) {
    Gathered want, got;
    comm::run_ranks(1, [&](comm::World& world) { run_ends(world.all(), want, {}, placement); });
    comm::run_ranks(GetParam(), [&](comm::World& world) { run_ends(world.all(), got, {}, placement); });
    expect_same(got, want);
  }
}

TEST_P(Grid, SequenceParallelEmbeddingAndHeadGiveTheBitsOfOthers) {
  for (const int sub_batches : {1, 2}) {
    for (const nn::NormPlacement placement : {nn::NormPlacement::pre, nn::NormPlacement::post}) {
      Gathered whole, shared;
      comm::run_ranks(GetParam(), [&](comm::World& world) { run_ends(world.all(), whole, {}, placement); });
      comm::run_ranks(GetParam(), [&](comm::World& world) {
        run_ends(world.all(), shared, {.sequence_parallel = nn::SequenceParallel::on, .sub_batches = sub_batches},
                 placement);
      });
      expect_same_bits_but_of_norms(shared, whole, "norm");
    }
  }
}

TEST(TensorParallel, SharesThatWouldBeUnequalAreRefused) {
  comm::run_ranks(2, [](comm::World& world) {
    const nn::TensorParallel tp(world.all(), nn::SequenceParallel::on, 2);
    EXPECT_EQ(tp.rows_outside(12), 6);
    try {
      (void)tp.rows_outside(6);
      FAIL() << "nothing was thrown";
    } catch (const ConfigError& error) {
      EXPECT_STREQ(
          error.what(),
          "train.micro_batch * model.seq_len = 6: must be divisible by parallel.tp * sub-microbatches = 2 * 2 with "
          "parallel.sequence_parallel = true: every rank holds as many rows of each sub-microbatch");
    }
    EXPECT_EQ(nn::TensorParallel(world.all(), nn::SequenceParallel::off, 2).rows_outside(7), 7);
  });
  comm::run_ranks(1, [](comm::World& world) {
    EXPECT_EQ(nn::TensorParallel(world.all(), nn::SequenceParallel::on, 1).sequence_parallel(),
              nn::SequenceParallel::off);
  });
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
    const nn::AttentionSpec one_head{.num_heads = 1, .head_dim = 8};
    EXPECT_THROW(nn::SelfAttention::declare(specs, "a", one_head, {.hidden_size = 8}, world.all()), ConfigError);
  });
}

}  // namespace
}  // namespace megalith
