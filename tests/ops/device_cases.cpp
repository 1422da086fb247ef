#include "tests/ops/device_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "megalith/ops/adamw.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/embedding.h"
#include "megalith/ops/matmul.h"
#include "megalith/ops/norm.h"
#include "megalith/ops/step_end.h"

namespace megalith::ops {
namespace {

using support::Twin;

struct MatrixSizes {
  Index rows, columns;
};
// Nothing, one element, odd sizes, one row, one column, whole vectors, the models' own widths, and wide rows.
constexpr MatrixSizes kMatrixSizes[] = {{0, 8},     {1, 1},     {3, 7},      {1, 768},   {129, 1},
                                        {33, 257},  {200, 768}, {130, 1536}, {65, 2048}, {33, 5120},
                                        {9, 16383}, {5, 16384}, {9001, 264}};

TEST_P(DeviceOps, Elementwise) {
  for (const auto [rows, columns] : kMatrixSizes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    const Twin x = t().in({rows, columns}, 1, 3), z = t().in({rows, columns}, 1, 3), bias = t().in({columns}, 2);
    const Twin residual = t().in({rows, columns}, 3), y = t().out({rows, columns}), dz = t().out({rows, columns});
    const Twin sum = t().out({rows, columns}), dropped = t().out({rows, columns}), back = t().out({rows, columns});
    const Twin grad = t().in_f32({columns}, 4), state = t().structure(kDeviceState), copied = t().out({rows, columns});
    t().run([&](Exec& ex) {
      const Dropout dropout{
          .probability = 0.3, .seed = 9, .site = 4, .step_state = state.on(ex), .seq_len = 1, .first_row = 3};
      bias_gelu(ex, {.x = z.on(ex), .bias = bias.on(ex), .y = y.on(ex)});
      gelu_backward(ex, {.z = x.on(ex), .dy = residual.on(ex), .dz = dz.on(ex)});
      add(ex, x.on(ex), residual.on(ex), sum.on(ex));
      bias_dropout_residual(
          ex,
          {.x = x.on(ex), .bias = bias.on(ex), .residual = residual.on(ex), .out = dropped.on(ex), .dropout = dropout});
      dropout_backward(ex, {.dout = x.on(ex), .dx = back.on(ex), .dropout = dropout});
      bias_backward(ex, x.on(ex), grad.on(ex));
      copy(ex, x.on(ex), copied.on(ex));
      add_bias(ex, x.on(ex), bias.on(ex));
      scale(ex, residual.on(ex), 0.5);
    });
    expect_same(z, "z");
    expect_same(y, "gelu");
    expect_same(dz, "gelu'");
    expect_same(sum, "add");
    expect_same(dropped, "bias_dropout_residual");
    expect_same(back, "dropout_backward");
    expect_close(grad, "bias_backward", 5e-6);
    expect_close(copied, "copy", 0);
    expect_same(x, "add_bias");
    expect_same(residual, "scale");
    t().release();
  }
}

TEST_P(DeviceOps, Norms) {
  for (const auto [rows, columns] : kMatrixSizes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    if (columns == 1) continue;  // the variance of one number is 0: 1/sqrt(eps) magnifies nothing but rounding
    const Shape matrix{rows, columns};
    const Twin x = t().in(matrix, 1, 2), gamma = t().in({columns}, 2), beta = t().in({columns}, 3);
    const Twin dy = t().in(matrix, 4), residual = t().in(matrix, 5), bias = t().in({columns}, 6);
    const Twin y = t().out(matrix), mean = t().out_f32({rows}), rstd = t().out_f32({rows});
    const Twin sum = t().out(matrix), y2 = t().out(matrix), mean2 = t().out_f32({rows}), rstd2 = t().out_f32({rows});
    const Twin dx = t().out(matrix), gamma_grad = t().in_f32({columns}, 7), beta_grad = t().in_f32({columns}, 8);
    const Twin bias_grad = t().in_f32({columns}, 9), state = t().structure(kDeviceState);
    t().run([&](Exec& ex) {
      layer_norm_forward(ex, {.x = x.on(ex),
                              .gamma = gamma.on(ex),
                              .beta = beta.on(ex),
                              .y = y.on(ex),
                              .mean = mean.on(ex),
                              .rstd = rstd.on(ex)});
      residual_layer_norm(
          ex,
          {.x = x.on(ex),
           .bias = bias.on(ex),
           .residual = residual.on(ex),
           .gamma = gamma.on(ex),
           .beta = beta.on(ex),
           .sum = sum.on(ex),
           .y = y2.on(ex),
           .mean = mean2.on(ex),
           .rstd = rstd2.on(ex),
           .dropout = {
               .probability = 0.3, .seed = 9, .site = 4, .step_state = state.on(ex), .seq_len = 1, .first_row = 3}});
      layer_norm_backward(ex, {.dy = dy.on(ex),
                               .x = x.on(ex),
                               .gamma = gamma.on(ex),
                               .mean = mean.on(ex),
                               .rstd = rstd.on(ex),
                               .residual = residual.on(ex),
                               .dx = dx.on(ex),
                               .gamma_grad = gamma_grad.on(ex),
                               .beta_grad = beta_grad.on(ex),
                               .bias_grad = bias_grad.on(ex)});
      // Over dy, and without a residual.
      layer_norm_backward(ex, {.dy = dy.on(ex),
                               .x = x.on(ex),
                               .gamma = gamma.on(ex),
                               .mean = mean.on(ex),
                               .rstd = rstd.on(ex),
                               .residual = {},
                               .dx = dy.on(ex),
                               .gamma_grad = gamma_grad.on(ex),
                               .beta_grad = beta_grad.on(ex)});
    });
    expect_same(y, "y");
    expect_close(mean, "mean", 1e-5);
    expect_close(rstd, "rstd", 1e-5);
    expect_same(sum, "sum");
    expect_twice_rounded(y2, "y of the residual form: the sum is rounded first");
    expect_same(dx, "dx");
    expect_same(dy, "dx over dy");
    expect_close(gamma_grad, "gamma_grad", 1e-5);
    expect_close(beta_grad, "beta_grad", 1e-5);
    expect_same(bias_grad, "bias_grad, of rounded numbers");
    t().release();
  }
}

TEST_P(DeviceOps, Products) {
  struct Product {
    Index m, n, k;
  };
  for (const auto [m, n, k] :
       {Product{1, 1, 1}, Product{1, 768, 64}, Product{7, 5, 3}, Product{5, 3, 0}, Product{0, 4, 3},
        Product{129, 65, 33}, Product{256, 768, 512}, Product{130, 3072, 768}, Product{100, 50257, 64}}) {
    for (const Transpose ta : {Transpose::no, Transpose::yes}) {
      for (const Transpose tb : {Transpose::no, Transpose::yes}) {
        SCOPED_TRACE(::testing::Message()
                     << m << " x " << n << " x " << k << (ta == Transpose::yes) << (tb == Transpose::yes));
        const Twin a = t().in(ta == Transpose::yes ? Shape{k, m} : Shape{m, k}, 1),
                   b = t().in(tb == Transpose::yes ? Shape{n, k} : Shape{k, n}, 2);
        const Twin bias = t().in({n}, 3), c = t().out({m, n}), sum = t().in_f32({m, n}, 4),
                   bias_grad = t().in_f32({m}, 5);
        t().run([&](Exec& ex) {
          matmul(
              ex,
              {.a = a.on(ex), .b = b.on(ex), .bias = bias.on(ex), .c = c.on(ex), .transpose_a = ta, .transpose_b = tb});
          matmul(ex, {.a = a.on(ex),
                      .b = b.on(ex),
                      .c = sum.on(ex),
                      .bias_grad = ta == Transpose::yes ? bias_grad.on(ex) : Tensor(),
                      .transpose_a = ta,
                      .transpose_b = tb,
                      .write = Write::accumulate});
        });
        expect_same(c, "product + bias");
        expect_close(sum, "accumulated in f32", 5e-6);
        expect_close(bias_grad, "row sums", 5e-6);
        t().release();
      }
    }
  }
}

TEST_P(DeviceOps, ProductsWithGelu) {
  struct Product {
    Index tokens, features, k;
  };
  // On Hopper GPUs multiples of 8 take the kernel of gelu_product.h: parts of its tiles of 128 x 128 x 64, and more
  // tiles than thread blocks. cuBLASLt's epilogues with GELU, which other GPUs take, want a multiple of 8 of the
  // features alone: a k of 4 more runs them on Hopper GPUs too.
  for (const auto [tokens, features, k] :
       {Product{1, 1, 1}, Product{13, 17, 19}, Product{0, 8, 8}, Product{256, 512, 128}, Product{130, 3072, 768},
        Product{1, 8, 8}, Product{127, 264, 72}, Product{1001, 136, 200}, Product{12011, 264, 72},
        Product{130, 264, 76}, Product{256, 512, 132}, Product{1001, 136, 196}}) {
    SCOPED_TRACE(::testing::Message() << tokens << " x " << features << " x " << k);
    const Twin x = t().in({tokens, k}, 1), w = t().in({features, k}, 2, 0.3), bias = t().in({features}, 3);
    const Twin z = t().out({tokens, features}), y = t().out({tokens, features}),
               saved = t().in({tokens, features}, 7, 3);
    const Twin dy = t().in({tokens, k}, 4), back = t().in({k, features}, 5, 0.3), dz = t().out({tokens, features}),
               grad = t().in_f32({features}, 6);
    t().run([&](Exec& ex) {
      matmul_gelu(ex, {.x = x.on(ex), .w = w.on(ex), .bias = bias.on(ex), .z = z.on(ex), .y = y.on(ex)});
      matmul_gelu_backward(
          ex, {.dy = dy.on(ex), .w = back.on(ex), .z = saved.on(ex), .dz = dz.on(ex), .bias_grad = grad.on(ex)});
    });
    expect_same(z, "z");
    expect_same(y, "gelu(z)");
    expect_same(dz, "dz");
    // The sum of rounded dz where the library has no epilogue for it: one rounding of 2^-9 each, averaging out.
    expect_close(grad, "bias_grad", GetParam().dtype == DType::f32 ? 1e-5 : GetParam().once);
    t().release();
  }
}

struct Heads {
  Index batch, seq_len, heads, head_dim;
};

TEST_P(DeviceOps, Attention) {
  for (const auto [batch, seq_len, heads, head_dim] :
       {Heads{0, 4, 2, 3}, Heads{1, 1, 1, 1}, Heads{2, 5, 3, 4}, Heads{1, 70, 2, 8}, Heads{1, 300, 1, 5},
        Heads{2, 129, 2, 64}, Heads{1, 257, 3, 96}, Heads{1, 200, 2, 128}, Heads{1, 65, 1, 256}, Heads{2, 256, 2, 64},
        Heads{3, 192, 2, 64}, Heads{1, 256, 1, 136}, Heads{1, 192, 2, 192}, Heads{2, 256, 1, 256}}) {
    for (const double probability : {0.0, 0.2}) {
      SCOPED_TRACE(::testing::Message() << batch << " samples of " << seq_len << ", " << heads << " heads of "
                                        << head_dim << ", p " << probability);
      const Index tokens = batch * seq_len, width = heads * head_dim;
      const Twin qkv = t().in({tokens, 3 * width}, 1, 2), dout = t().in({tokens, width}, 2),
                 out = t().out({tokens, width});
      const Twin lse = t().out_f32({batch, heads, seq_len}), dqkv = t().out({tokens, 3 * width}),
                 dqkv_in_any_order = t().out({tokens, 3 * width}), state = t().structure(kDeviceState);
      t().run([&](Exec& ex) {
        const Dropout dropout{
            .probability = probability, .seed = 9, .site = 2, .step_state = state.on(ex), .seq_len = seq_len};
        attention_forward(ex, {.qkv = qkv.on(ex),
                               .out = out.on(ex),
                               .log_sum_exp = lse.on(ex),
                               .batch = batch,
                               .seq_len = seq_len,
                               .num_heads = heads,
                               .first_head = 1,
                               .num_global_heads = heads + 2,
                               .dropout = dropout});
        for (const Determinism determinism : {Determinism::required, Determinism::not_required}) {
          ex.set_determinism(determinism);
          const Twin& gradient = determinism == Determinism::required ? dqkv : dqkv_in_any_order;
          attention_backward(ex, {.dout = dout.on(ex),
                                  .qkv = qkv.on(ex),
                                  .out = out.on(ex),
                                  .log_sum_exp = lse.on(ex),
                                  .dqkv = gradient.on(ex),
                                  .batch = batch,
                                  .seq_len = seq_len,
                                  .num_heads = heads,
                                  .first_head = 1,
                                  .num_global_heads = heads + 2,
                                  .dropout = dropout});
        }
      });
      expect_same(out, "out");
      expect_close(lse, "log_sum_exp", GetParam().log_sum_exp);
      // out is rounded before, on a GPU P and dS on the way
      expect_close(dqkv, "dqkv", 2 * GetParam().once);
      expect_close(dqkv_in_any_order, "dqkv without determinism", 2 * GetParam().once);
      t().release();
    }
  }
}

TEST_P(DeviceOps, AttentionThatTheLibraryRefuses) {
  if (GetParam().dtype == DType::f32) GTEST_SKIP() << "the library is not asked for f32";
  constexpr Index kBatch = 2, kSeqLen = 200, kHeads = 3, kHeadDim = 64;
  constexpr Index kTokens = kBatch * kSeqLen, kWidth = kHeads * kHeadDim;
  for (const auto& [no_forward, no_backward] : {std::pair{true, false}, {false, true}, {true, true}}) {
    SCOPED_TRACE(::testing::Message() << "no forward " << no_forward << ", no backward " << no_backward);
    const Pretending pretending({.no_library_forward = no_forward, .no_library_backward = no_backward});
    const AttentionShape shape{GetParam().dtype, kBatch, kSeqLen, kHeads, kHeadDim};
    for (const auto& [pass, refuses] :
         {std::pair{AttentionPass::forward, no_forward}, {AttentionPass::backward, no_backward}}) {
      if (GetParam().device == Device::cpu) continue;  // there may be no GPU to ask
      const AttentionWay way = attention_way(pass, shape, Determinism::required);
      EXPECT_TRUE(!refuses || (!way.by_library && way.kernel == "megalith")) << way.kernel;
      EXPECT_EQ(way.refusal, refuses && attention_build().has_cudnn ? "cuDNN: refused for a test" : "");
    }
    const Twin qkv = t().in({kTokens, 3 * kWidth}, 1, 2), dout = t().in({kTokens, kWidth}, 2),
               out = t().out({kTokens, kWidth});
    const Twin lse = t().out_f32({kBatch, kHeads, kSeqLen}), dqkv = t().out({kTokens, 3 * kWidth});
    t().run([&](Exec& ex) {
      attention_forward(ex, {.qkv = qkv.on(ex),
                             .out = out.on(ex),
                             .log_sum_exp = lse.on(ex),
                             .batch = kBatch,
                             .seq_len = kSeqLen,
                             .num_heads = kHeads,
                             .dropout = {}});
      attention_backward(ex, {.dout = dout.on(ex),
                              .qkv = qkv.on(ex),
                              .out = out.on(ex),
                              .log_sum_exp = lse.on(ex),
                              .dqkv = dqkv.on(ex),
                              .batch = kBatch,
                              .seq_len = kSeqLen,
                              .num_heads = kHeads,
                              .dropout = {}});
    });
    expect_same(out, "out");
    expect_close(lse, "log_sum_exp", GetParam().log_sum_exp);
    expect_close(dqkv, "dqkv", 2 * GetParam().once);
    t().release();
  }
}

TEST_P(DeviceOps, CrossEntropy) {
  for (const auto [tokens, columns] :
       {MatrixSizes{0, 8}, MatrixSizes{1, 4}, MatrixSizes{5, 24}, MatrixSizes{33, 257}, MatrixSizes{64, 50304},
        MatrixSizes{7, 50257}, MatrixSizes{600, 16384}, MatrixSizes{600, 9000}}) {
    SCOPED_TRACE(::testing::Message() << tokens << " x " << columns);
    const Index vocab_size = columns > 4 ? columns - 3 : columns;
    std::vector<std::int32_t> ids;
    for (Index i = 0; i < tokens; ++i)
      ids.push_back(i % 5 == 2 ? -1 : static_cast<std::int32_t>(i * 7919 % vocab_size));
    const Twin logits = t().in({tokens, columns}, 1, 8), parts = t().in({tokens, columns}, 1, 8),
               targets = t().ids(ids), state = t().structure(kDeviceState);
    const Twin evaluated = t().in({tokens, columns}, 1, 8), loss2 = t().out_f32({tokens}), loss_sum2 = t().scalar(0);
    const Twin loss = t().out_f32({tokens}), loss_sum = t().scalar(0.5), row_max = t().out_f32({tokens}),
               sums = t().out_f32({2, tokens});
    const Twin split_loss = t().out_f32({tokens}), split_sum = t().scalar(0.5);
    t().run([&](Exec& ex) {
      cross_entropy(ex, {.logits = logits.on(ex),
                         .targets = targets.on(ex),
                         .step_state = state.on(ex),
                         .loss = loss.on(ex),
                         .loss_sum = loss_sum.on(ex),
                         .vocab_size = vocab_size});
      cross_entropy(ex, {.logits = evaluated.on(ex),
                         .targets = targets.on(ex),
                         .step_state = {},
                         .loss = loss2.on(ex),
                         .loss_sum = loss_sum2.on(ex),
                         .vocab_size = vocab_size});
      logits_max(ex, parts.on(ex), row_max.on(ex), 0, vocab_size);
      logits_sum_exp(ex, {.logits = parts.on(ex),
                          .row_max = row_max.on(ex),
                          .targets = targets.on(ex),
                          .sums = sums.on(ex),
                          .first_id = 0,
                          .vocab_size = vocab_size});
      loss_from_sums(ex, {.sums = sums.on(ex),
                          .targets = targets.on(ex),
                          .loss = split_loss.on(ex),
                          .loss_sum = split_sum.on(ex),
                          .vocab_size = vocab_size});
      logits_backward(ex, {.logits = parts.on(ex),
                           .sums = sums.on(ex),
                           .targets = targets.on(ex),
                           .step_state = state.on(ex),
                           .first_id = 0});
    });
    expect_close(loss, "loss", 1e-5);
    expect_close(loss_sum, "loss_sum", 1e-5);
    expect_close(loss2, "evaluated loss", 1e-5);
    expect_same(logits, "gradient");
    expect_close(row_max, "row_max", 1e-6);
    expect_close(sums, "sums", 1e-5);
    expect_close(split_loss, "split loss", 1e-5);
    expect_close(split_sum, "split loss_sum", 1e-5);
    expect_twice_rounded(parts, "split gradient: exp(z - max) is rounded first");
    t().release();
  }
}

TEST_P(DeviceOps, CrossEntropyOfAShard) {
  const Index tokens = 20, held = 40, first_id = 40, vocab_size = 73;
  std::vector<std::int32_t> ids;
  for (Index i = 0; i < tokens; ++i) ids.push_back(static_cast<std::int32_t>(i * 31 % vocab_size));
  const Twin z = t().in({tokens, held}, 1, 8), targets = t().ids(ids), state = t().structure(kDeviceState);
  const Twin row_max = t().out_f32({tokens}), sums = t().out_f32({2, tokens});
  t().run([&](Exec& ex) {
    logits_max(ex, z.on(ex), row_max.on(ex), first_id, vocab_size);
    logits_sum_exp(ex, {.logits = z.on(ex),
                        .row_max = row_max.on(ex),
                        .targets = targets.on(ex),
                        .sums = sums.on(ex),
                        .first_id = first_id,
                        .vocab_size = vocab_size});
    logits_backward(ex, {.logits = z.on(ex),
                         .sums = sums.on(ex),
                         .targets = targets.on(ex),
                         .step_state = state.on(ex),
                         .first_id = first_id});
  });
  expect_close(row_max, "row_max", 1e-6);
  expect_close(sums, "sums", 1e-5);
  expect_twice_rounded(z, "gradient");
}

TEST_P(DeviceOps, Embedding) {
  struct Table {
    Index batch, seq_len, held, hidden;
  };
  for (const auto [batch, seq_len, held, hidden] :
       {Table{1, 1, 1, 1}, Table{3, 7, 5, 9}, Table{4, 64, 100, 768}, Table{2, 700, 3, 64}, Table{2, 512, 50304, 32},
        Table{5, 3001, 1, 8}, Table{8, 1024, 4, 12}, Table{8, 1024, 6, 12}}) {
    SCOPED_TRACE(::testing::Message() << batch << " x " << seq_len << " of " << held << " x " << hidden);
    const Index tokens = batch * seq_len, first_id = 2, vocab_size = held + 4;
    std::vector<std::int32_t> values;  // of one row: all the same
    for (Index i = 0; i < tokens; ++i)
      values.push_back(static_cast<std::int32_t>(held == 1 && tokens > 1 ? first_id : i * i % 97 % vocab_size));
    const Twin ids = t().ids(values), table = t().in({held, hidden}, 1), y = t().out({tokens, hidden}),
               position = t().in({seq_len, hidden}, 2);
    const Twin with_position = t().out({tokens, hidden}), dy = t().in({tokens, hidden}, 3),
               state = t().structure(kDeviceState);
    const Twin table_grad = t().in_f32({held, hidden}, 4), position_grad = t().in_f32({seq_len, hidden}, 5);
    t().run([&](Exec& ex) {
      embedding_forward(
          ex,
          {.ids = ids.on(ex), .table = table.on(ex), .y = y.on(ex), .first_id = first_id, .vocab_size = vocab_size});
      add_position(ex, {.x = y.on(ex),
                        .position = position.on(ex),
                        .y = with_position.on(ex),
                        .dropout = {.probability = 0.3,
                                    .seed = 9,
                                    .site = 4,
                                    .step_state = state.on(ex),
                                    .seq_len = seq_len,
                                    .first_row = seq_len / 2}});  // a share that begins within a sample
      embedding_backward(ex,
                         {.ids = ids.on(ex), .dy = dy.on(ex), .table_grad = table_grad.on(ex), .first_id = first_id});
      position_backward(ex, dy.on(ex), position_grad.on(ex));
    });
    expect_close(y, "rows", 0);
    expect_same(with_position, "with position");
    expect_close(table_grad, "table_grad", 5e-6);
    expect_close(position_grad, "position_grad", 5e-6);
    const std::vector<double> first = t().read(table_grad.tested);
    const Twin again = t().in_f32({held, hidden}, 4);
    embedding_backward(t().tested(),
                       {.ids = ids.tested, .dy = dy.tested, .table_grad = again.tested, .first_id = first_id});
    EXPECT_EQ(t().read(again.tested), first) << "the same bits every time";
    t().release();
  }
}

// Of flat buffers: nothing, one element, whole vectors of 4, an odd rest, more than a block of the sum of squares.
constexpr Index kCounts[] = {0, 1, 64, 65, 20001, 20004, (Index{1} << 20) + 76, (Index{1} << 20) + 77};

TEST_P(DeviceOps, AdamW) {
  const bool has_copy = t().dtype() != DType::f32;
  for (const Index n : kCounts) {
    SCOPED_TRACE(n);
    const Twin w = t().in_f32({n}, 1), m = t().in_f32({n}, 2), v = t().positive_f32({n}, 3), grad = t().in_f32({n}, 4);
    const Tensor copy = has_copy ? t().tested().tensor({n}, t().dtype()) : Tensor();
    std::vector<std::uint8_t> flags(static_cast<std::size_t>(ceil_div(n, kDecayGroup)));
    for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = i % 3 != 0;
    const Twin decays = t().bytes_of(flags.data(), {static_cast<Index>(flags.size())}, DType::u8);
    const auto step = [&](std::int32_t apply) {
      const Twin verdict =
          t().structure(StepVerdict{.apply = apply, .factor = 0.5, .learning_rate = 0.01, .update = 7});
      t().run([&](Exec& ex) {
        adamw(ex, {.value = w.on(ex),
                   .m = m.on(ex),
                   .v = v.on(ex),
                   .copy = &ex == &t().oracle() ? Tensor() : copy,
                   .grad = grad.on(ex),
                   .decays = decays.on(ex),
                   .verdict = verdict.on(ex),
                   .beta1 = 0.8,
                   .beta2 = 0.95,
                   .eps = 1e-6,
                   .weight_decay = 0.1});
      });
    };
    const auto state = [&] { return std::array{t().read(w.tested), t().read(m.tested), t().read(v.tested)}; };
    const auto before = state();
    step(0);
    EXPECT_EQ(state(), before) << "a refused step must change nothing";
    step(1);
    expect_close(w, "w", 2e-6);
    expect_close(m, "m", 2e-6);
    expect_close(v, "v", 2e-6);
    if (has_copy) {
      EXPECT_EQ(t().read(copy), t().rounded(t().read(w.tested))) << "the copy is the rounded value";
    }
    t().release();
  }
}

TEST_P(DeviceOps, SumOfSquares) {
  for (const Index n : kCounts) {
    SCOPED_TRACE(n);
    const Twin x = t().in_f32({3, n}, 4), sum = t().scalar(2);
    t().run([&](Exec& ex) {
      const Index blocks = square_blocks(ex.device(), n);  // each device cuts in its own way
      const Tensor sums = ex.tensor({3, blocks}, DType::f64);
      sum_of_squares(ex, x.on(ex), sums);
      add_up(ex, sums.reshaped({3 * blocks}), sum.on(ex));
    });
    expect_close(sum, "sum of squares", 1e-12);
    t().release();
  }
}

TEST_P(DeviceOps, InitialisationIsThatOfTheOracle) {
  const TensorSlice slice{"layers.3.mlp.up.weight", {70, 48}, {8, 4}, {33, 40}};  // two padding rows behind it
  const Twin w = t().out_f32({35, 40});
  t().run([&](Exec& ex) { initialise(ex, {slice, Init::normal, 0.02}, w.on(ex), 77); });
  expect_close(w, "values", 1e-7);
}

TEST_P(DeviceOps, DecidesStepsAsTheOracleDoes) {
  const Twin loss = t().scalar(3), totals = t().bytes_of(std::vector<double>(2).data(), {2}, DType::f64);
  const Twin counts = t().bytes_of(std::vector<std::uint64_t>(4).data(), {4}, DType::u64),
             outcome = t().structure(StepOutcome{});
  const Twin state = t().structure(OptimizerState{.updates = 41, .loss_scale = 65536, .clean_steps = 1}),
             verdict = t().structure(StepVerdict{});
  const Twin step = t().structure(kDeviceState);
  const StepRules rules{.learning_rate = {.lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 10, .decay_steps = 100},
                        .scaling = {.initial = 65536, .growth_interval = 2},
                        .clip = 1};
  const auto same_bytes = [&](const Twin& twin) {
    std::vector<std::byte> got(static_cast<std::size_t>(twin.tested.bytes()));
    t().tested().copy(got.data(), twin.tested.raw(), twin.tested.bytes());
    t().tested().synchronize();
    return std::memcmp(got.data(), twin.oracle.raw(), got.size()) == 0;
  };
  constexpr double kSquares = 16.0 * 65536 * 65536, kInf = std::numeric_limits<double>::infinity();
  for (const std::array squares : {std::array{kSquares, 1.0}, std::array{kInf, 1.0}, std::array{kSquares, kInf}}) {
    const Twin this_time = t().bytes_of(squares.data(), {2}, DType::f64);
    t().run([&](Exec& ex) {
      scale_step_state(ex, state.on(ex), step.on(ex));
      step_terms(ex, {.sum_squares = this_time.on(ex),
                      .loss_sum = loss.on(ex),
                      .totals = totals.on(ex),
                      .counts = counts.on(ex),
                      .outcome = outcome.on(ex)});
      decide_step(ex, {.totals = totals.on(ex),
                       .counts = counts.on(ex),
                       .state = state.on(ex),
                       .verdict = verdict.on(ex),
                       .outcome = outcome.on(ex),
                       .rules = rules});
    });
    EXPECT_TRUE(same_bytes(step));
    EXPECT_TRUE(same_bytes(state));
    EXPECT_TRUE(same_bytes(totals));
    EXPECT_TRUE(same_bytes(counts));
    StepVerdict got;
    t().tested().copy(&got, verdict.tested.raw(), sizeof got);
    t().tested().synchronize();
    StepVerdict want;
    std::memcpy(&want, verdict.oracle.raw(), sizeof want);
    EXPECT_EQ(got.apply, want.apply);
    EXPECT_EQ(got.update, want.update);
    EXPECT_NEAR(got.learning_rate, want.learning_rate, 1e-15);
    EXPECT_NEAR(got.factor, want.factor, 1e-15 * want.factor);
  }
}

}  // namespace
}  // namespace megalith::ops
