#include "megalith/nn/bert_head.h"

#include <gtest/gtest.h>

#include "tests/nn/layer_harness.h"

// BERT's heads: gradients against central differences, and grids against one rank, in f64.
namespace megalith {
namespace {

using support::Gathered;
using support::LayerParams;
using support::SmallMicrobatch;

constexpr Index kBertHidden = 4, kBertSeqLen = 4, kBertBatch = 2, kBertTokens = kBertBatch * kBertSeqLen;

/// Two samples of four tokens with two places each, of which one is spare, and their first tokens.
struct HeadCase {
  std::int32_t rows[6] = {2, 3, 5, -1, 0, 4}, row_of[kBertTokens] = {4, -1, 0, 1, 5, 2, -1, -1},
               targets[4] = {6, 0, 12, -1}, labels[kBertBatch] = {1, 0};
  double sums[3] = {};
  StepState label_state{.loss_scale = 0.75};

  void forget_first_tokens() { row_of[0] = row_of[4] = -1; }

  nn::HeadInputs inputs(nn::OrderLoss order = nn::OrderLoss::two_classes) {
    const bool is_pair = order == nn::OrderLoss::two_classes;
    return {.targets = Tensor(targets, {4}, DType::i32),
            .loss_sums = Tensor(sums, {is_pair ? 3 : 1}, DType::f64),
            .rows = Tensor(rows, {is_pair ? 6 : 4}, DType::i32),
            .row_of = Tensor(row_of, {kBertTokens}, DType::i32),
            .labels = is_pair ? Tensor(labels, {kBertBatch}, DType::i32) : Tensor(),
            .label_state = Tensor(&label_state, {sizeof(label_state)}, DType::u8)};
  }
};

struct HeadKind {
  std::optional<nn::NormSpec> norm = nn::NormSpec{"norm"};
  nn::BertHeadSpec spec = {};
};

LayerParams head_params(const HeadKind& kind, const nn::VocabShard& vocab, const nn::TensorParallel& tp) {
  std::vector<ParamSpec> specs = {nn::token_table("table", vocab, kBertHidden, 1)};
  if (kind.norm) nn::Norm::declare(specs, *kind.norm, kBertHidden, tp);
  nn::BertHead::declare(specs, kind.spec, vocab, {.hidden_size = kBertHidden}, tp.group());
  return LayerParams(std::move(specs));
}

nn::BertHead make_bert_head(const HeadKind& kind, const nn::VocabShard& vocab, const nn::TensorParallel& tp,
                            LayerParams& layer) {
  return {kind.spec,
          vocab,
          tp,
          layer.params,
          {kind.norm ? std::optional(nn::Norm(*kind.norm, layer.params)) : std::nullopt, layer.params.at("table")}};
}

void check_bert_head(const HeadKind& kind) {
  comm::run_ranks(1, [&](comm::World& world) {
    const nn::TensorParallel tp = support::whole_rows(world.all());
    const nn::VocabShard vocab = nn::vocab_shard(13, 20, world.all());
    LayerParams layer = head_params(kind, vocab, tp);
    const nn::BertHead head = make_bert_head(kind, vocab, tp, layer);
    SmallMicrobatch microbatch{.seq_len = kBertSeqLen};
    HeadCase one;
    if (kind.spec.order == nn::OrderLoss::none) one.forget_first_tokens();
    const nn::HeadInputs inputs = one.inputs(kind.spec.order);
    Exec ex;
    const Tensor x = support::random_tensor(ex, {kBertTokens, kBertHidden}, 1),
                 dx = ex.tensor({kBertTokens, kBertHidden}, DType::f64);
    const std::unique_ptr<nn::Head::Saved> saved = head.make_saved();
    const Tensor loss = head.forward(ex, microbatch.get(), x, inputs, *saved);
    EXPECT_EQ(loss.data<double>()[3], 0);
    head.backward(ex, microbatch.get(), inputs, *saved, {dx});
    const auto scaled_loss = [&] {
      Exec scratch;
      const std::unique_ptr<nn::Head::Saved> ignored = head.make_saved();
      std::ranges::fill(one.sums, 0);
      head.forward(scratch, microbatch.get(), x, inputs, *ignored);
      return one.sums[0] * microbatch.state.loss_scale + one.sums[1] * one.label_state.loss_scale;
    };
    constexpr double kTolerance = 1e-7;  // of central differences, as in finite_difference_test.cpp
    EXPECT_LT(support::relative_error(support::values_of(dx), support::numeric_gradient(x, scaled_loss)), kTolerance);
    for (const ParamBuffer& buffer : layer.params.trained()) {
      for (const Param& param : buffer.params()) {
        EXPECT_LT(support::relative_error(support::values_of(param.grad),
                                          support::numeric_gradient(param.value, scaled_loss)),
                  kTolerance)
            << param.name();
      }
    }
  });
}

TEST(BertHead, GradientsAreThoseOfDifferences) {
  check_bert_head({});
  check_bert_head({.norm = std::nullopt});
  check_bert_head({.spec = {.order = nn::OrderLoss::none}});
  HeadKind first_bert{.norm = std::nullopt};
  first_bert.spec.masked_lm.gelu = ops::GeluForm::erf;
  first_bert.spec.masked_lm.norm_eps = 1e-12;
  check_bert_head(first_bert);
  HeadKind rms;
  rms.norm->kind = rms.spec.masked_lm.norm = nn::NormKind::rms;
  check_bert_head(rms);
}

TEST(BertHead, CountsSamplesWhoseLikelierClassIsTheLabel) {
  comm::run_ranks(1, [](comm::World& world) {
    const nn::TensorParallel tp = support::whole_rows(world.all());
    const nn::VocabShard vocab = nn::vocab_shard(13, 20, world.all());
    LayerParams layer = head_params({}, vocab, tp);
    const nn::BertHead head = make_bert_head({}, vocab, tp, layer);
    Exec ex;
    ops::fill(ex, layer.params.at("head.order.weight").value, 0);
    double* bias = layer.params.at("head.order.bias").value.data<double>();
    SmallMicrobatch microbatch{.seq_len = kBertSeqLen};
    const Tensor x = support::random_tensor(ex, {kBertTokens, kBertHidden}, 1);
    const auto right = [&](double of_second, std::array<std::int32_t, 2> labels) {
      HeadCase one;
      std::ranges::copy(labels, one.labels);
      bias[0] = 0, bias[1] = of_second;
      const std::unique_ptr<nn::Head::Saved> saved = head.make_saved();
      head.forward(ex, microbatch.get(), x, one.inputs(), *saved);
      return one.sums[2];
    };
    EXPECT_EQ(right(1, {1, 0}), 1);
    EXPECT_EQ(right(1, {1, 1}), 2);
    EXPECT_EQ(right(-1, {1, 1}), 0);
    EXPECT_EQ(right(-1, {0, -1}), 1) << "a sample without a label counts for nothing";
  });
}

/// Results of the heads on a grid, with the rows of x and dx put together.
void run_bert_head(const comm::Group& group, nn::SequenceParallel sequence_parallel, int sub_batches, Gathered& out) {
  const nn::TensorParallel tp(group, sequence_parallel, sub_batches);
  const nn::VocabShard vocab = nn::vocab_shard(13, 20, group);
  LayerParams layer = head_params({}, vocab, tp);
  const nn::BertHead head = make_bert_head({}, vocab, tp, layer);
  SmallMicrobatch microbatch{.seq_len = kBertSeqLen};
  HeadCase one;
  Exec ex;
  const Tensor all = support::random_tensor(ex, {kBertTokens, kBertHidden}, 1);
  const Shape held{tp.rows_outside(kBertTokens), kBertHidden};
  const Tensor x = ex.tensor(held, DType::f64), dx = ex.tensor(held, DType::f64);
  const auto for_own_rows = [&](const auto& f) {
    tp.for_blocks(microbatch.get(), {}, [&](const nn::SubBatch& block, const ops::Dropout& at) {
      f(block, at.first_row, block.of(x).dim(0));
    });
  };
  for_own_rows(
      [&](const nn::SubBatch& block, Index first, Index count) { ops::copy(ex, all.rows(first, count), block.of(x)); });
  const std::unique_ptr<nn::Head::Saved> saved = head.make_saved();
  const nn::HeadInputs inputs = one.inputs();
  out.put("loss", head.forward(ex, microbatch.get(), x, inputs, *saved));
  out.put("sums", inputs.loss_sums);
  head.backward(ex, microbatch.get(), inputs, *saved, {dx});
  for_own_rows([&](const nn::SubBatch& block, Index first, Index count) {
    out.put({"dx", {kBertTokens, kBertHidden}, {first, 0}, {count, kBertHidden}}, block.of(dx));
  });
  for (const ParamBuffer& buffer : layer.params.trained()) {
    for (const Param& param : buffer.params()) {
      if (grid::is_partial_along_tp(param.spec.placement))  // the final norm's, of own rows
        comm::all_reduce(ex, group, param.grad, comm::Reduce::sum).wait(ex);
      out.put(param.spec.slice, param.without_padding(param.grad));
    }
  }
}

TEST(BertHead, GridsMatchOneRank) {
  Gathered want;
  comm::run_ranks(1, [&](comm::World& world) { run_bert_head(world.all(), nn::SequenceParallel::off, 1, want); });
  for (const int ranks : {2, 4}) {
    for (const auto sequence_parallel : {nn::SequenceParallel::off, nn::SequenceParallel::on}) {
      for (const int sub_batches : {1, 2}) {
        Gathered got;
        comm::run_ranks(ranks,
                        [&](comm::World& world) { run_bert_head(world.all(), sequence_parallel, sub_batches, got); });
        ASSERT_EQ(got.tensors().size(), want.tensors().size());
        EXPECT_TRUE(got.disagreeing().empty()) << *got.disagreeing().begin() << ": ranks have different values";
        for (const auto& [name, values] : want.tensors())
          EXPECT_LT(support::relative_error(got.at(name), values), 1e-12)
              << name << ", " << ranks << " ranks, " << sub_batches << " sub-microbatches";
      }
    }
  }
}

}  // namespace
}  // namespace megalith
