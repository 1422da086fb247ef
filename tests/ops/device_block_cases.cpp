#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "megalith/ops/argmax.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/init.h"
#include "megalith/ops/norm.h"
#include "megalith/ops/qk_head_norm.h"
#include "megalith/ops/qk_norm.h"
#include "megalith/ops/rope.h"
#include "megalith/ops/swiglu.h"

#include "tests/ops/device_cases.h"

// The ops of blocks in the manner of Llama and of mixtures of experts, against the oracle.
namespace megalith::ops {

struct TurnedHeads {
  Index rows, seq_len, heads, kv_heads, head_dim;
  Index columns() const { return (heads + 2 * kv_heads) * head_dim; }
};

void DeviceOps::expect_rope_as_oracle(const TurnedHeads& heads, QkvOrder attended) {
  SCOPED_TRACE(::testing::Message() << heads.rows << " rows, " << heads.heads << " heads of " << heads.head_dim
                                    << (attended == QkvOrder::parts ? " in parts" : ""));
  const RopeFrequencies frequencies{
      .head_dim = heads.head_dim, .theta = 500000, .scaling = RopeScaling::llama3, .factor = 8};
  const support::Twin forward = t().in({heads.rows, heads.columns()}, 1, 3),
                      backward = t().in({heads.rows, heads.columns()}, 2, 3);
  const support::Twin table = t().out_f32({heads.seq_len + 5, 2, heads.head_dim / 2});
  t().run([&](Exec& ex) {
    rope_table(ex, frequencies, table.on(ex));
    Rope args{.qkv = forward.on(ex),
              .table = table.on(ex),
              .num_heads = heads.heads,
              .num_kv_heads = heads.kv_heads,
              .seq_len = heads.seq_len,
              .first_row = 3,
              .start_position = 5,
              .attended = attended};
    rope(ex, args);
    args.qkv = backward.on(ex);
    args.direction = RopeDirection::backward;
    rope(ex, args);
  });
  expect_close(table, "table", 1e-6);
  expect_same(forward, "forward");
  expect_same(backward, "backward");
  t().release();
}

namespace {

using support::Twin;
using support::values_on;

struct BlockSizes {
  Index rows, columns;
};
// Nothing, one element, odd sizes, one row, whole vectors, the models' own widths, and wide rows.
constexpr BlockSizes kBlockSizes[] = {{0, 8},      {1, 1},     {3, 7},     {1, 768},   {33, 257},  {200, 768},
                                      {130, 1536}, {65, 2048}, {33, 5120}, {9, 16383}, {5, 16384}, {9001, 264}};

TEST_P(DeviceOps, RmsNorms) {
  for (const auto [rows, columns] : kBlockSizes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    if (columns == 1) continue;  // dx is a difference of equal numbers, of which rounding alone is left
    const Shape matrix{rows, columns};
    const Twin x = t().in(matrix, 1, 2), gamma = t().in({columns}, 2), dy = t().in(matrix, 4),
               residual = t().in(matrix, 5), bias = t().in({columns}, 6);
    const Twin y = t().out(matrix), rstd = t().out_f32({rows}), sum = t().out(matrix), y2 = t().out(matrix),
               rstd2 = t().out_f32({rows}), sum3 = t().out(matrix), y3 = t().out(matrix), rstd3 = t().out_f32({rows});
    const Twin dx = t().out(matrix), gamma_grad = t().in_f32({columns}, 7), bias_grad = t().in_f32({columns}, 9),
               state = t().structure(kDeviceState);
    t().run([&](Exec& ex) {
      norm_forward(ex, {.x = x.on(ex), .gamma = gamma.on(ex), .y = y.on(ex), .rstd = rstd.on(ex)});
      residual_norm(
          ex,
          {.x = x.on(ex),
           .bias = bias.on(ex),
           .residual = residual.on(ex),
           .gamma = gamma.on(ex),
           .sum = sum.on(ex),
           .y = y2.on(ex),
           .rstd = rstd2.on(ex),
           .dropout = {
               .probability = 0.3, .seed = 9, .site = 4, .step_state = state.on(ex), .seq_len = 1, .first_row = 3}});
      residual_norm(ex, {.x = x.on(ex),
                         .bias = {},
                         .residual = residual.on(ex),
                         .gamma = gamma.on(ex),
                         .sum = sum3.on(ex),
                         .y = y3.on(ex),
                         .rstd = rstd3.on(ex),
                         .dropout = {}});
      norm_backward(ex, {.dy = dy.on(ex),
                         .x = x.on(ex),
                         .gamma = gamma.on(ex),
                         .rstd = rstd.on(ex),
                         .residual = residual.on(ex),
                         .dx = dx.on(ex),
                         .gamma_grad = gamma_grad.on(ex),
                         .bias_grad = bias_grad.on(ex)});
      // Over dy, and without a residual.
      norm_backward(ex, {.dy = dy.on(ex),
                         .x = x.on(ex),
                         .gamma = gamma.on(ex),
                         .rstd = rstd.on(ex),
                         .residual = {},
                         .dx = dy.on(ex),
                         .gamma_grad = gamma_grad.on(ex)});
    });
    expect_same(y, "y");
    expect_close(rstd, "rstd", 1e-5);
    expect_same(sum, "sum");
    expect_twice_rounded(y2, "y of the residual form: the sum is rounded first");
    expect_close(rstd2, "rstd of the residual form", GetParam().once);
    expect_same(sum3, "sum without a bias");
    expect_twice_rounded(y3, "y without a bias");
    expect_same(dx, "dx");
    expect_same(dy, "dx over dy");
    expect_close(gamma_grad, "gamma_grad", 1e-5);
    expect_same(bias_grad, "bias_grad, of rounded numbers");
    t().release();
  }
}

/// A block that is followed by another gives what one that ends a stage gives, forward and backward, to the bit.
TEST_P(DeviceOps, WhatRmsNormsDoBesides) {
  Exec& ex = t().tested();
  for (const auto [rows, columns] : kBlockSizes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    const Shape matrix{rows, columns};
    const Tensor x = t().in(matrix, 1, 2).on(ex), bias = t().in({columns}, 2).on(ex),
                 residual = t().in(matrix, 3).on(ex), gamma = t().in({columns}, 4).on(ex),
                 dy = t().in(matrix, 6).on(ex), rstd = t().out_f32({rows}).on(ex),
                 rstd_of_two = t().out_f32({rows}).on(ex);
    const Dropout dropout{
        .probability = 0.3, .seed = 9, .site = 4, .step_state = t().structure(kDeviceState).on(ex), .seq_len = 1};
    const Tensor sum = t().out(matrix).on(ex), y = t().out(matrix).on(ex), sum_of_two = t().out(matrix).on(ex),
                 y_of_two = t().out(matrix).on(ex);
    residual_norm(ex, {.x = x,
                       .bias = bias,
                       .residual = residual,
                       .gamma = gamma,
                       .sum = sum,
                       .y = y,
                       .rstd = rstd,
                       .dropout = dropout});
    bias_dropout_residual(ex, {.x = x, .bias = bias, .residual = residual, .out = sum_of_two, .dropout = dropout});
    norm_forward(ex, {.x = sum_of_two, .gamma = gamma, .y = y_of_two, .rstd = rstd_of_two});
    EXPECT_EQ(t().read(sum), t().read(sum_of_two));
    EXPECT_EQ(t().read(y), t().read(y_of_two));
    EXPECT_EQ(t().read(rstd), t().read(rstd_of_two));
    for (const Tensor& past : {residual, Tensor()}) {
      const auto backward = [&](const Tensor& bias_grad) {
        const NormBackward args{.dy = dy,
                                .x = sum,
                                .gamma = gamma,
                                .rstd = rstd,
                                .residual = past,
                                .dx = t().out(matrix).on(ex),
                                .gamma_grad = t().in_f32({columns}, 7).on(ex),
                                .bias_grad = bias_grad};
        norm_backward(ex, args);
        return args;
      };
      const NormBackward both = backward(t().in_f32({columns}, 9).on(ex)), alone = backward({});
      const Tensor sums = t().in_f32({columns}, 9).on(ex);
      bias_backward(ex, alone.dx, sums);
      EXPECT_EQ(t().read(both.dx), t().read(alone.dx));
      EXPECT_EQ(t().read(both.gamma_grad), t().read(alone.gamma_grad));
      EXPECT_EQ(t().read(both.bias_grad), t().read(sums));
    }
    t().release();
  }
}

/// A layer norm after a residual sum without a bias equals that with a bias of zeros, to the bit.
TEST_P(DeviceOps, ResidualLayerNormWithoutBias) {
  for (const auto [rows, columns] : kBlockSizes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    Exec& ex = t().tested();
    const Shape matrix{rows, columns};
    const Tensor x = t().in(matrix, 1).on(ex), residual = t().in(matrix, 2).on(ex), gamma = t().in({columns}, 3).on(ex),
                 zeros = t().in({columns}, 4, 0).on(ex);
    const auto with = [&](const Tensor& bias) {
      const Tensor sum = t().out(matrix).on(ex), y = t().out(matrix).on(ex), mean = t().out_f32({rows}).on(ex),
                   rstd = t().out_f32({rows}).on(ex);
      residual_norm(ex, {.x = x,
                         .bias = bias,
                         .residual = residual,
                         .gamma = gamma,
                         .beta = gamma,
                         .sum = sum,
                         .y = y,
                         .mean = mean,
                         .rstd = rstd,
                         .dropout = {}});
      return std::array{t().read(sum), t().read(y), t().read(mean), t().read(rstd)};
    };
    EXPECT_EQ(with({}), with(zeros));
    t().release();
  }
}

TEST_P(DeviceOps, Swiglu) {
  for (const auto [rows, units] : kBlockSizes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << units);
    const Twin in = t().in({rows, 2 * units}, 1, 6), dy = t().in({rows, units}, 2), y = t().out({rows, units});
    const Twin back = t().out({rows, 2 * units});
    t().run([&](Exec& ex) {
      swiglu(ex, {.gate_up = in.on(ex), .y = y.on(ex)});
      swiglu_backward(ex, {.gate_up = in.on(ex), .dy = dy.on(ex), .dgate_up = back.on(ex)});
      swiglu_backward(ex, {.gate_up = in.on(ex), .dy = dy.on(ex), .dgate_up = in.on(ex)});
    });
    expect_same(y, "y");
    expect_same(back, "dgate_up");
    expect_same(in, "dgate_up in place");
    t().release();
  }
}

TEST_P(DeviceOps, Rope) {
  for (const TurnedHeads heads : {TurnedHeads{0, 4, 1, 1, 2},
                                  {1, 1, 1, 1, 2},
                                  {10, 5, 4, 2, 6},
                                  {7, 9, 3, 1, 24},
                                  {33, 11, 9, 3, 64},
                                  {130, 65, 32, 8, 128},
                                  {3, 2000, 2, 2, 256},
                                  {5, 3, 252, 2, 64},
                                  {257, 300, 4, 2, 16}}) {
    expect_rope_as_oracle(heads, QkvOrder::groups);
    if (GetParam().device == Device::cpu || can_reorder(GetParam().dtype, heads.columns(), heads.head_dim))
      expect_rope_as_oracle(heads, QkvOrder::parts);
  }
}

struct HeadSizes {
  Index rows, heads, kv_heads, head_dim;
  Index columns() const { return (heads + 2 * kv_heads) * head_dim; }
};
// Nothing, one row, odd widths, whole vectors of 16 and of 32 bits, the models' own, and more rows than parts.
constexpr HeadSizes kHeadSizes[] = {{0, 2, 1, 8},      {1, 1, 1, 2},     {10, 4, 2, 6},  {7, 3, 1, 37},
                                    {33, 9, 3, 64},    {65, 32, 4, 128}, {3, 2, 2, 256}, {17, 2, 1, 255},
                                    {130, 16, 16, 20}, {9001, 2, 1, 24}};

TEST_P(DeviceOps, QkHeadNorms) {
  for (const HeadSizes& heads : kHeadSizes) {
    SCOPED_TRACE(::testing::Message() << heads.rows << " rows, " << heads.heads << " heads of " << heads.head_dim);
    const Shape matrix{heads.rows, heads.columns()}, of_heads{heads.rows, heads.heads + heads.kv_heads};
    const Shape weights{heads.head_dim};
    const Twin qkv = t().in(matrix, 1, 2), gamma_q = t().in(weights, 2), gamma_k = t().in(weights, 3),
               dout = t().in(matrix, 4), out = t().out(matrix), rstd = t().out_f32(of_heads), dqkv = t().out(matrix),
               gamma_q_grad = t().in_f32(weights, 5), gamma_k_grad = t().in_f32(weights, 6);
    t().run([&](Exec& ex) {
      qk_head_norm(ex, {.qkv = qkv.on(ex),
                        .gamma_q = gamma_q.on(ex),
                        .gamma_k = gamma_k.on(ex),
                        .out = out.on(ex),
                        .rstd = rstd.on(ex),
                        .num_heads = heads.heads,
                        .num_kv_heads = heads.kv_heads});
      QkHeadNormBackward args{.dout = dout.on(ex),
                              .qkv = qkv.on(ex),
                              .gamma_q = gamma_q.on(ex),
                              .gamma_k = gamma_k.on(ex),
                              .rstd = rstd.on(ex),
                              .dqkv = dqkv.on(ex),
                              .gamma_q_grad = gamma_q_grad.on(ex),
                              .gamma_k_grad = gamma_k_grad.on(ex),
                              .num_heads = heads.heads,
                              .num_kv_heads = heads.kv_heads};
      qk_head_norm_backward(ex, args);
      args.dqkv = args.dout;
      qk_head_norm_backward(ex, args);
    });
    expect_same(out, "out");
    expect_close(rstd, "rstd", 1e-5);
    expect_same(dqkv, "dqkv");
    EXPECT_EQ(t().read(dout.tested), t().read(dqkv.tested)) << "dqkv over dout";
    expect_close(gamma_q_grad, "gamma_q_grad", 1e-5);
    expect_close(gamma_k_grad, "gamma_k_grad", 1e-5);
    t().release();
  }
}

TEST_P(DeviceOps, QkNormsOverAllHeads) {
  for (const HeadSizes& heads : kHeadSizes) {
    SCOPED_TRACE(::testing::Message() << heads.rows << " rows, " << heads.heads << " heads of " << heads.head_dim);
    const Shape matrix{heads.rows, heads.columns()}, pairs{heads.rows, 2};
    const Shape of_q{heads.heads * heads.head_dim}, of_k{heads.kv_heads * heads.head_dim};
    const Twin qkv = t().in(matrix, 1, 2), gamma_q = t().in(of_q, 2), gamma_k = t().in(of_k, 3),
               dout = t().in(matrix, 4), squares = t().out_f32(pairs), out = t().out(matrix), sums = t().out_f32(pairs),
               dqkv = t().out(matrix), gamma_q_grad = t().in_f32(of_q, 5), gamma_k_grad = t().in_f32(of_k, 6);
    t().run([&](Exec& ex) {
      const Index of_rank_q = heads.heads, of_rank_k = heads.kv_heads, total_q = 3 * of_rank_q, total_k = 3 * of_rank_k;
      qk_square_sums(
          ex, {.qkv = qkv.on(ex), .square_sums = squares.on(ex), .num_heads = of_rank_q, .num_kv_heads = of_rank_k});
      qk_norm(ex, {.qkv = qkv.on(ex),
                   .square_sums = squares.on(ex),
                   .gamma_q = gamma_q.on(ex),
                   .gamma_k = gamma_k.on(ex),
                   .out = out.on(ex),
                   .num_heads = of_rank_q,
                   .num_kv_heads = of_rank_k,
                   .total_num_heads = total_q,
                   .total_num_kv_heads = total_k});
      qk_norm_backward_sums(ex, {.dout = dout.on(ex),
                                 .qkv = qkv.on(ex),
                                 .square_sums = squares.on(ex),
                                 .gamma_q = gamma_q.on(ex),
                                 .gamma_k = gamma_k.on(ex),
                                 .g_xhat_sums = sums.on(ex),
                                 .num_heads = of_rank_q,
                                 .num_kv_heads = of_rank_k,
                                 .total_num_heads = total_q,
                                 .total_num_kv_heads = total_k});
      QkNormBackward args{.dout = dout.on(ex),
                          .qkv = qkv.on(ex),
                          .square_sums = squares.on(ex),
                          .g_xhat_sums = sums.on(ex),
                          .gamma_q = gamma_q.on(ex),
                          .gamma_k = gamma_k.on(ex),
                          .dqkv = dqkv.on(ex),
                          .gamma_q_grad = gamma_q_grad.on(ex),
                          .gamma_k_grad = gamma_k_grad.on(ex),
                          .num_heads = of_rank_q,
                          .num_kv_heads = of_rank_k,
                          .total_num_heads = total_q,
                          .total_num_kv_heads = total_k};
      qk_norm_backward(ex, args);
      args.dqkv = args.dout;
      qk_norm_backward(ex, args);
    });
    expect_close(squares, "square_sums", 1e-5);
    expect_same(out, "out");
    expect_close(sums, "g_xhat_sums", 1e-5);
    expect_same(dqkv, "dqkv");
    EXPECT_EQ(t().read(dout.tested), t().read(dqkv.tested)) << "dqkv over dout";
    expect_close(gamma_q_grad, "gamma_q_grad", 1e-5);
    expect_close(gamma_k_grad, "gamma_k_grad", 1e-5);
    t().release();
  }
}

/// A head has the same bits whatever heads lie beside it, and wherever in memory it lies.
TEST_P(DeviceOps, QkHeadNormsOfOneHeadAlone) {
  Exec& ex = t().tested();
  for (const auto [rows, kv_heads, head_dim] : {std::array<Index, 3>{13, 4, 64}, {70, 3, 20}, {5, 2, 256}}) {
    SCOPED_TRACE(::testing::Message() << rows << " rows, heads of " << head_dim);
    const Tensor gamma_q = t().in({head_dim}, 2).on(ex), gamma_k = t().in({head_dim}, 3).on(ex);
    const auto run = [&, head_dim = head_dim, rows = rows](const Tensor& qkv, const Tensor& dout, Index groups) {
      const QkHeadNorm forward{.qkv = qkv,
                               .gamma_q = gamma_q,
                               .gamma_k = gamma_k,
                               .out = t().out(qkv.shape()).on(ex),
                               .rstd = t().out_f32({rows, 3 * groups}).on(ex),
                               .num_heads = 2 * groups,
                               .num_kv_heads = groups};
      const QkHeadNormBackward backward{.dout = dout,
                                        .qkv = qkv,
                                        .gamma_q = gamma_q,
                                        .gamma_k = gamma_k,
                                        .rstd = forward.rstd,
                                        .dqkv = t().out(qkv.shape()).on(ex),
                                        .gamma_q_grad = t().in_f32({head_dim}, 5).on(ex),
                                        .gamma_k_grad = t().in_f32({head_dim}, 6).on(ex),
                                        .num_heads = 2 * groups,
                                        .num_kv_heads = groups};
      qk_head_norm(ex, forward);
      qk_head_norm_backward(ex, backward);
      return std::array{t().read(forward.out), t().read(forward.rstd), t().read(backward.dqkv)};
    };
    const Index of_group = 4 * head_dim, columns = kv_heads * of_group;
    const Tensor qkv = t().in({rows, columns}, 1, 2).on(ex), dout = t().in({rows, columns}, 4).on(ex);
    const auto all = run(qkv, dout, kv_heads);
    const auto cut = [rows = rows](const std::vector<double>& matrix, Index first, Index count) {
      std::vector<double> part;
      for (auto row = matrix.begin(); row != matrix.end(); row += static_cast<Index>(matrix.size()) / rows)
        part.insert(part.end(), row + first, row + first + count);
      return part;
    };
    const Index element = size_of(t().dtype());
    const auto put = [&](const std::vector<double>& values, const Shape& shape, Index place) {
      Exec host;
      std::vector<double> copy = values;
      const Tensor wide(copy.data(), shape, DType::f64), narrow = host.tensor(shape, t().dtype());
      cast(host, wide, narrow);
      const Tensor room = t().out({wide.numel() + 1}).on(ex);
      const Tensor tensor(static_cast<std::byte*>(room.raw()) + place * element, shape, t().dtype());
      ex.copy(tensor.raw(), narrow.raw(), narrow.bytes());
      ex.synchronize();
      return tensor;
    };
    const std::vector<double> x = t().read(qkv), d = t().read(dout);
    for (const Index place : {0, 1}) {  // 1: no multiple of 16 bytes
      for (Index group = 0; group < kv_heads; ++group) {
        const auto alone = run(put(cut(x, group * of_group, of_group), {rows, of_group}, place),
                               put(cut(d, group * of_group, of_group), {rows, of_group}, place), 1);
        EXPECT_EQ(alone[0], cut(all[0], group * of_group, of_group));
        EXPECT_EQ(alone[1], cut(all[1], group * 3, 3));
        EXPECT_EQ(alone[2], cut(all[2], group * of_group, of_group));
      }
    }
    t().release();
  }
}

/// Coarse logits, so that rows have ties: what is found is the same everywhere.
TEST_P(DeviceOps, Argmax) {
  for (const auto [rows, columns] : kBlockSizes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    const Twin logits = t().in({rows, columns}, 1, 4), coarse = t().out({rows, columns});
    std::vector<double> values = t().read(logits.tested);
    for (double& value : values) value = std::round(4 * value) / 4;
    for (std::size_t i = 0; i < values.size(); i += 11) values[i] = std::nan("");
    std::copy(values.begin(), values.end(), coarse.oracle.data<double>());
    Exec host;
    const Tensor narrow = host.tensor({rows, columns}, t().dtype());
    cast(host, coarse.oracle, narrow);
    t().tested().copy(coarse.tested.raw(), narrow.raw(), narrow.bytes());
    t().tested().synchronize();
    const std::vector<double> nothing(static_cast<std::size_t>(4 * rows), 77);
    const std::vector<std::int32_t> none(static_cast<std::size_t>(rows), 77);
    const Twin pairs = t().bytes_of(nothing.data(), {2 * rows, 2}, DType::f64),
               ids = t().bytes_of(none.data(), {rows}, DType::i32);
    std::vector<std::int32_t> guesses;  // some of which are right
    for (Index row = 0; row < rows; ++row) guesses.push_back(static_cast<std::int32_t>(row % 3 - 1));
    const Twin wanted = t().bytes_of(guesses.data(), {rows}, DType::i32), matches = t().scalar(3);
    t().run([&](Exec& ex) {
      // Two shards with the same columns, the second with the higher ids: the first wins.
      for (const Index shard : {0, 1})
        argmax(ex, {.logits = coarse.on(ex),
                    .best = pairs.on(ex).rows(shard * rows, rows),
                    .first_id = shard * columns,
                    .vocab_size = 2 * columns - (columns > 4 ? 2 : 0)});
      argmax_of_shards(ex, {.best = pairs.on(ex), .ids = ids.on(ex)});
      count_matches(ex, {.ids = ids.on(ex), .targets = wanted.on(ex), .sum = matches.on(ex)});
    });
    const auto want = ids.oracle.span<std::int32_t>();
    std::vector<std::int32_t> got(want.size());
    t().tested().copy(got.data(), ids.tested.raw(), ids.tested.bytes());
    EXPECT_EQ(t().read(pairs.tested), values_on(t().oracle(), pairs.oracle));
    EXPECT_EQ(t().read(matches.tested), values_on(t().oracle(), matches.oracle));
    EXPECT_EQ(got, std::vector<std::int32_t>(want.begin(), want.end()));
    t().release();
  }
}

}  // namespace
}  // namespace megalith::ops
