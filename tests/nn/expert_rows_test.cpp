// Rows of experts that are rounded to E4M3 while they are gathered, against rows that are gathered and then rounded.
#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "megalith/nn/moe/experts.h"
#include "megalith/nn/moe/local_dispatcher.h"

#include "tests/nn/layer_harness.h"

namespace megalith::nn {
namespace {

constexpr Index kTokens = 150, kExperts = 5, kRowWidth = 256, kUnits = 128;

struct RowsCase {
  Index top_k = 1;
  Index capacity = 0;  ///< rows of every expert; 0: as many as choose it
  Activation activation = Activation::swiglu;
  GemmFormat weight_grad = GemmFormat::compute;
  bool recomputes = false;

  SublayerOptions options() const {
    SublayerOptions options{.group_alignment = ops::kScaleBlock, .expert_gemms = {GemmFormat::e4m3, weight_grad}};
    options.recompute.mode = RecomputeMode::selective;
    if (recomputes) options.recompute.add(RecomputeModule::mlp);
    return options;
  }
  DispatchSizes sizes(const PassForms& forms) const {
    return {.num_experts = kExperts,
            .top_k = top_k,
            .capacity = capacity,
            .run = capacity > 0 ? kTokens : 0,
            .alignment = ops::kScaleBlock,
            .forms = forms};
  }
  std::string name() const {
    return str("top ", top_k, ", capacity ", capacity, ", activation ", static_cast<int>(activation),
               ", FP8 weight gradients ", weight_grad == GemmFormat::e4m3, ", recomputes ", recomputes);
  }
};

std::vector<RowsCase> rows_cases() {
  std::vector<RowsCase> all;
  for (const Index top_k : {1, 2, 3}) {
    for (const Index capacity : {0, 130}) {
      for (const GemmFormat weight_grad : {GemmFormat::compute, GemmFormat::e4m3}) {
        for (const bool recomputes : {false, true})
          all.push_back({top_k, capacity, top_k == 2 ? Activation::gelu : Activation::swiglu, weight_grad, recomputes});
      }
    }
  }
  return all;
}

/// Experts 1 and 3 have most of the rows, 4 has none. Every tenth pair is dropped, and every pair of token 7.
std::int32_t chosen_expert(Index token, Index k) {
  if (token == 7 || (token * 3 + k) % 10 == 0) return -1;
  return static_cast<std::int32_t>((token % 4 == 0 ? 1 : 3) + k) % 4;
}

std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  std::memcpy(bytes.data(), tensor.raw(), bytes.size());
  return bytes;
}

/// These forms and no others take memory.
void expect_made(const ExpertRows& rows, const RowForms& forms) {
  EXPECT_EQ(static_cast<bool>(rows.rows), forms.numbers);
  EXPECT_EQ(static_cast<bool>(rows.operands.straight), forms.straight);
  EXPECT_EQ(static_cast<bool>(rows.operands.turned), forms.turned);
}

using RowResults = std::map<std::string, std::vector<std::byte>>;

/// Two passes, forward and backward, whose dispatcher brings rows in these forms. All memory is full of NaN before.
RowResults run_rows(const RowsCase& c, const PassForms& forms) {
  RowResults results;
  comm::run_ranks(1, [&](comm::World& world) {
    const comm::Group solo = world.all();
    const ExpertParallel parallel(support::whole_rows(solo), solo, solo, solo);
    std::vector<ParamSpec> specs;
    Experts::declare(
        specs, "experts",
        {.config = {.num_experts = kExperts, .top_k = c.top_k, .ffn_hidden_size = kUnits}, .activation = c.activation},
        {.hidden_size = kRowWidth}, parallel);
    MemoryLedger ledger(Device::cpu);
    ParamSet params(std::move(specs), {DType::f32, DType::bf16, GemmFormat::e4m3});
    params.allocate(ledger);
    for (ParamBuffer& buffer : params.buffers()) {
      for (Param& param : buffer.params()) support::fill_random(param.value, std::hash<std::string>()(param.name()));
    }
    const Experts experts("experts", c.options(), params);
    const LocalDispatcher dispatcher(solo, c.sizes(forms), HostCopies{});
    for (const ops::Write write : {ops::Write::overwrite, ops::Write::accumulate}) {
      Exec ex;
      ex.poison_new_tensors();
      const auto stream = static_cast<std::uint64_t>(write);
      const Tensor x = support::random_tensor(ex, {kTokens, kRowWidth}, 1 + stream, DType::bf16),
                   dy = support::random_tensor(ex, {kTokens, kRowWidth}, 3 + stream, DType::bf16),
                   weights = support::random_tensor(ex, {kTokens, c.top_k}, 5 + stream, DType::f32);
      const Tensor y = ex.tensor_like(x), dx = ex.tensor_like(x), d_weights = ex.tensor_like(weights);
      const Tensor choices = ex.tensor({kTokens, c.top_k}, DType::i32);
      for (Index t = 0; t < kTokens; ++t) {
        for (Index k = 0; k < c.top_k; ++k) choices.data<std::int32_t>()[t * c.top_k + k] = chosen_expert(t, k);
      }
      const auto saved = dispatcher.make_saved();
      saved->take_host_memory(Device::cpu);
      Experts::Saved of_experts;
      LaterRows none;
      dispatcher.preprocess(ex, {.experts = choices, .mode = Mode::train}, *saved);
      dispatcher.permute(ex, x, *saved);
      dispatcher.dispatch(ex, *saved, none).wait(ex);
      const ExpertRows rows = dispatcher.arrived(ex, *saved);
      expect_made(rows, forms.forward);
      dispatcher.return_rows(ex, experts.forward(ex, rows, of_experts, none), *saved);
      dispatcher.combine(ex, weights, y, *saved);
      dispatcher.combine_backward(ex, dy, weights, *saved);
      const RowGrads d_rows = dispatcher.return_rows_backward(ex, *saved, none);
      expect_made({d_rows.rows, {}, d_rows.operands}, forms.grads);
      const ExpertRows in = dispatcher.dispatched(ex, x, *saved);
      expect_made(in, forms.again);
      const SourceGrads sources{dx, d_weights};
      dispatcher.dispatch_backward(ex, experts.backward(ex, in, d_rows, write, of_experts, none), sources, *saved)
          .wait(ex);
      experts.add_last_weight_grads(ex, in, write, of_experts);
      dispatcher.permute_backward(ex, sources, *saved);
      for (const auto& [name, tensor] : {std::pair{"y", y}, {"dx", dx}, {"d_weights", d_weights}})
        results[str(name, " of pass ", stream)] = bytes_of(tensor);
    }
    for (ParamBuffer& buffer : params.buffers()) {
      for (Param& param : buffer.params()) results[param.name()] = bytes_of(param.grad);
    }
  });
  return results;
}

TEST(ExpertRows, AreRoundedWhereTheyAreGathered) {
  for (const RowsCase& c : rows_cases()) {
    SCOPED_TRACE(c.name());
    const RowResults want = run_rows(c, {}), got = run_rows(c, Experts::row_forms(c.options()));
    ASSERT_EQ(want.size(), 8u);
    for (const auto& [name, bytes] : want) EXPECT_TRUE(got.at(name) == bytes) << name;
  }
}

/// Each form is there if a product reads it.
TEST(ExpertRows, FormsOfPasses) {
  const auto expect_forms = [](const RowForms& got, bool numbers, bool straight, bool turned) {
    EXPECT_EQ(got.numbers, numbers);
    EXPECT_EQ(got.straight, straight);
    EXPECT_EQ(got.turned, turned);
  };
  for (const bool recomputes : {false, true}) {
    SublayerOptions in_bf16 = RowsCase{.recomputes = recomputes}.options();
    in_bf16.expert_gemms = {};
    for (const RowForms& form :
         {Experts::row_forms(in_bf16).forward, Experts::row_forms(in_bf16).grads, Experts::row_forms(in_bf16).again})
      expect_forms(form, true, false, false);
    for (const GemmFormat weight_grad : {GemmFormat::compute, GemmFormat::e4m3}) {
      const bool turned = weight_grad == GemmFormat::e4m3;
      const PassForms forms =
          Experts::row_forms(RowsCase{.weight_grad = weight_grad, .recomputes = recomputes}.options());
      expect_forms(forms.forward, false, true, false);
      expect_forms(forms.grads, !turned, true, turned);
      expect_forms(forms.again, !turned, recomputes, turned);
    }
  }
}

}  // namespace
}  // namespace megalith::nn
