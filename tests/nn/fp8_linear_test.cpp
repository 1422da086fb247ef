#include <array>

#include <gtest/gtest.h>

#include "megalith/nn/linear.h"

#include "tests/nn/layer_harness.h"

// Linear layers with FP8 operands over tp ranks. Whole sums over K have the bits of one rank, as operands do.
namespace megalith {
namespace {

using support::Gathered;

constexpr Index kRows = 24, kIn = 256, kOut = 512;
constexpr Policy kFp8{DType::f32, DType::bf16, GemmFormat::e4m3};

/// up [kOut, kIn] and down [kIn, kOut] of one rank in bf16, as functions of global coordinates.
struct Fp8Layers {
  explicit Fp8Layers(const comm::Group& tp, const nn::GemmFormats& formats)
      : params({nn::rows_split("up", kOut, kIn, tp, 1), nn::vector_split("up_bias", {kOut}, tp),
                nn::columns_split("down", kIn, kOut, tp, 1)},
               kFp8),
        up_layer(support::whole_rows(tp), params.at("up"), params.find("up_bias"), formats),
        down_layer(support::whole_rows(tp), params.at("down"), nullptr, formats) {
    params.allocate(ledger);
    Exec ex;
    for (ParamBuffer& buffer : params.buffers()) {
      for (Param& param : buffer.params()) {
        ops::initialise(ex, {param.spec.slice, Init::normal, 0.1}, param.grad, 99);
        ops::cast(ex, param.grad, param.value);
      }
    }
  }
  MemoryLedger ledger{Device::cpu};
  ParamSet params;
  nn::ColumnParallelLinear up_layer;
  nn::RowParallelLinear down_layer;
};

/// Columns [first, first + count) of a random [kRows, columns] whose rows and blocks differ in size.
Tensor columns_of(Exec& ex, Index columns, Index first, Index count, std::uint64_t stream) {
  const Tensor all = support::random_tensor(ex, {kRows, columns}, stream, DType::bf16),
               part = ex.tensor({kRows, count}, DType::bf16);
  for (Index r = 0; r < kRows; ++r) {
    for (Index c = 0; c < count; ++c) {
      const float scale = std::ldexp(1.0f, static_cast<int>((first + c) / 64 % 7 + r % 3));
      part.data<bfloat16>()[r * count + c] =
          bfloat16(scale * static_cast<float>(all.data<bfloat16>()[r * columns + first + c]));
    }
  }
  return part;
}

constexpr nn::GemmFormats kAllFp8{GemmFormat::e4m3, GemmFormat::e4m3}, kRowsFp8{GemmFormat::e4m3, GemmFormat::compute};

std::unique_ptr<Gathered> passes(int ranks, const nn::GemmFormats& formats) {
  auto gathered = std::make_unique<Gathered>();
  Gathered& results = *gathered;
  comm::run_ranks(ranks, [&](comm::World& world) {
    const comm::Group& tp = world.all();
    Fp8Layers layers(tp, formats);
    Exec ex;
    const Index out = kOut / tp.size(), first = out * tp.rank();
    const Tensor x = columns_of(ex, kIn, 0, kIn, 1), dy = columns_of(ex, kIn, 0, kIn, 2),
                 d_up = columns_of(ex, kOut, first, out, 3);
    Tensor y;
    layers.up_layer.forward(ex, x, y, {});
    const Tensor d_hidden = ex.tensor({kRows, out}, DType::bf16), dx = ex.tensor({kRows, kIn}, DType::bf16);
    layers.down_layer.backward_input(ex, dy, d_hidden);
    layers.up_layer.backward_input(ex, d_up, dx).wait(ex);
    layers.up_layer.backward_weight(ex, d_up, x, ops::Write::overwrite, nn::BiasGrad::to_add);
    Tensor sum;
    layers.down_layer.forward(ex, d_up, sum, {}).wait(ex);
    const auto put_columns = [&](const std::string& name, const Tensor& part) {
      results.put(TensorSlice{name, {kRows, kOut}, {0, first}, part.shape()}, part);
    };
    put_columns("y", y);
    put_columns("d_hidden", d_hidden);
    const Param &up = layers.params.at("up"), &bias = layers.params.at("up_bias");
    results.put(TensorSlice{"up_grad", {kOut, kIn}, {first, 0}, up.grad.shape()}, up.grad);
    results.put(TensorSlice{"up_bias_grad", {kOut}, {first}, bias.grad.shape()}, bias.grad);
    if (tp.rank() != 0) return;
    results.put(TensorSlice::whole("dx", dx.shape()), dx);
    results.put(TensorSlice::whole("sum", sum.shape()), sum);
  });
  return gathered;
}

TEST(Fp8Linear, RanksHaveTheBitsOfOne) {
  const auto one = passes(1, kAllFp8), in_bf16 = passes(1, {});
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    const auto got = passes(ranks, kAllFp8);
    for (const char* whole : {"y", "d_hidden", "up_grad", "up_bias_grad"})
      EXPECT_EQ(got->at(whole), one->at(whole)) << whole;
    for (const char* summed : {"dx", "sum"})  // over ranks, in bf16
      EXPECT_LT(support::relative_error(got->at(summed), one->at(summed)), 0x1p-6) << summed;
  }
  for (const auto& [name, values] : in_bf16->tensors()) {
    if (name == "up_bias_grad") {
      EXPECT_EQ(one->at(name), values) << "a sum of dy in bf16";
      continue;
    }
    const double error = support::relative_error(one->at(name), values);
    EXPECT_LT(error, 0.1) << name;
    EXPECT_GT(error, 1e-3) << name << " has FP8 operands";
  }
}

TEST(Fp8Linear, WeightGradientsAreInFp8WhereTheyAreAskedToBe) {
  const auto all = passes(1, kAllFp8), rows = passes(1, kRowsFp8), in_bf16 = passes(1, {});
  EXPECT_EQ(rows->at("up_grad"), in_bf16->at("up_grad"));
  EXPECT_NE(all->at("up_grad"), in_bf16->at("up_grad"));
  EXPECT_EQ(rows->at("y"), all->at("y"));
}

TEST(Fp8Linear, EndsOfAModelCanStayInBf16) {
  const auto in_fp8 = [](nn::Fp8Skip skip, Index layer) {
    return nn::gemm_formats(GemmFormat::e4m3, {.skip_layers = skip}, layer, 3).rows == GemmFormat::e4m3;
  };
  const auto layers = [&](nn::Fp8Skip skip) { return std::array{in_fp8(skip, 0), in_fp8(skip, 1), in_fp8(skip, 2)}; };
  EXPECT_EQ(layers(nn::Fp8Skip::none), (std::array{true, true, true}));
  EXPECT_EQ(layers(nn::Fp8Skip::first), (std::array{false, true, true}));
  EXPECT_EQ(layers(nn::Fp8Skip::last), (std::array{true, true, false}));
  EXPECT_EQ(layers(nn::Fp8Skip::first_and_last), (std::array{false, true, false}));
}

}  // namespace
}  // namespace megalith
