#include "tests/ops/device_cases.h"

#include <utility>

#include "megalith/ops/attention.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/matmul.h"
#include "megalith/ops/norm.h"
#include "megalith/ops/swiglu.h"

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
    const Twin y_erf = t().out({rows, columns}), dz_erf = t().out({rows, columns});
    const Twin tanh = t().out({rows, columns}), dx_tanh = t().out({rows, columns});
    const Twin sum = t().out({rows, columns}), dropped = t().out({rows, columns}), back = t().out({rows, columns});
    const Twin grad = t().in_f32({columns}, 4), state = t().structure(kDeviceState), copied = t().out({rows, columns});
    t().run([&](Exec& ex) {
      const Dropout dropout{
          .probability = 0.3, .seed = 9, .site = 4, .step_state = state.on(ex), .seq_len = 1, .first_row = 3};
      bias_gelu(ex, {.x = z.on(ex), .bias = bias.on(ex), .y = y.on(ex)});
      gelu_backward(ex, {.z = x.on(ex), .dy = residual.on(ex), .dz = dz.on(ex)});
      gelu(ex, {.z = x.on(ex), .y = y_erf.on(ex), .form = GeluForm::erf});
      gelu_backward(ex, {.z = x.on(ex), .dy = residual.on(ex), .dz = dz_erf.on(ex), .form = GeluForm::erf});
      tanh_forward(ex, x.on(ex), tanh.on(ex));
      tanh_backward(ex, {.y = x.on(ex), .dy = residual.on(ex), .dx = dx_tanh.on(ex)});
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
    expect_same(y_erf, "gelu with the error function");
    expect_same(dz_erf, "gelu' with the error function");
    expect_same(tanh, "tanh");
    expect_same(dx_tanh, "tanh'");
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
      norm_forward(ex, {.x = x.on(ex),
                        .gamma = gamma.on(ex),
                        .beta = beta.on(ex),
                        .y = y.on(ex),
                        .mean = mean.on(ex),
                        .rstd = rstd.on(ex)});
      residual_norm(
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
      norm_backward(ex, {.dy = dy.on(ex),
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
      norm_backward(ex, {.dy = dy.on(ex),
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
    for (const GeluForm form : {GeluForm::tanh, GeluForm::erf}) {
      const Twin x = t().in({tokens, k}, 1), w = t().in({features, k}, 2, 0.3), bias = t().in({features}, 3);
      const Twin z = t().out({tokens, features}), y = t().out({tokens, features}),
                 saved = t().in({tokens, features}, 7, 3);
      const Twin dy = t().in({tokens, k}, 4), back = t().in({k, features}, 5, 0.3), dz = t().out({tokens, features}),
                 grad = t().in_f32({features}, 6);
      t().run([&](Exec& ex) {
        matmul_gelu(ex,
                    {.x = x.on(ex), .w = w.on(ex), .bias = bias.on(ex), .z = z.on(ex), .y = y.on(ex), .form = form});
        matmul_gelu_backward(ex, {.dy = dy.on(ex),
                                  .w = back.on(ex),
                                  .z = saved.on(ex),
                                  .dz = dz.on(ex),
                                  .bias_grad = grad.on(ex),
                                  .form = form});
      });
      expect_same(z, "z");
      // Without an epilogue the product is rounded before the bias and the activation.
      if (form == GeluForm::erf) {
        expect_twice_rounded(y, "gelu(z)");
        expect_twice_rounded(dz, "dz");
      } else {
        expect_same(y, "gelu(z)");
        expect_same(dz, "dz");
      }
      // The sum of rounded dz where the library has no epilogue for it: one rounding of 2^-9 each, averaging out.
      expect_close(grad, "bias_grad", GetParam().dtype == DType::f32 ? 1e-5 : GetParam().once);
      t().release();
    }
  }
}

TEST_P(DeviceOps, ProductsWithSwiglu) {
  struct Product {
    Index tokens, units, k;
  };
  // On Hopper GPUs 512 rows and more of widths of multiples of 8 take the kernel of grouped GEMMs: parts of its tiles
  // of 128 x 256 x 64, an odd number of tiles, and more of them than thread blocks.
  for (const auto [tokens, units, k] :
       {Product{1, 1, 1}, Product{13, 17, 19}, Product{0, 8, 8}, Product{3, 8, 0}, Product{130, 1024, 256},
        Product{512, 256, 128}, Product{513, 8, 8}, Product{639, 136, 200}, Product{641, 1288, 72},
        Product{12011, 264, 72}, Product{640, 132, 64}, Product{640, 136, 76}}) {
    SCOPED_TRACE(::testing::Message() << tokens << " x " << units << " x " << k);
    const Twin x = t().in({tokens, k}, 1), w = t().in({2 * units, k}, 2, 0.3);
    const Twin z = t().out({tokens, 2 * units}), y = t().out({tokens, units}),
               saved = t().in({tokens, 2 * units}, 7, 3);
    const Twin dy = t().in({tokens, k}, 4), back = t().in({k, units}, 5, 0.3), dz = t().out({tokens, 2 * units});
    const Twin again = t().out({tokens, units}), dz_and_y = t().out({tokens, 2 * units});
    t().run([&](Exec& ex) {
      matmul_swiglu(ex, {.x = x.on(ex), .w = w.on(ex), .z = z.on(ex), .y = y.on(ex)});
      matmul_swiglu_backward(ex, {.dy = dy.on(ex), .w = back.on(ex), .z = saved.on(ex), .dz = dz.on(ex)});
      matmul_swiglu_backward(
          ex, {.dy = dy.on(ex), .w = back.on(ex), .z = saved.on(ex), .dz = dz_and_y.on(ex), .y = again.on(ex)});
    });
    expect_same(z, "z");
    expect_twice_rounded(y, "swiglu(z)");
    expect_twice_rounded(dz, "dz");
    EXPECT_EQ(t().read(dz_and_y.tested), t().read(dz.tested));
    // y follows from the rounded z alone, whichever kernel makes it.
    const Twin of_z = t().out({tokens, units}), of_saved = t().out({tokens, units});
    t().run([&](Exec& ex) {
      swiglu(ex, {.gate_up = z.on(ex), .y = of_z.on(ex)});
      swiglu(ex, {.gate_up = saved.on(ex), .y = of_saved.on(ex)});
    });
    EXPECT_EQ(t().read(of_z.tested), t().read(y.tested));
    EXPECT_EQ(t().read(of_saved.tested), t().read(again.tested));
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
      expect_close(out, "out", of_attention());
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
      EXPECT_TRUE(!refuses || (!way.by_library && way.kernel.starts_with("megalith"))) << way.kernel;
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
    expect_close(out, "out", of_attention());
    expect_close(lse, "log_sum_exp", GetParam().log_sum_exp);
    expect_close(dqkv, "dqkv", 2 * GetParam().once);
    t().release();
  }
}

}  // namespace
}  // namespace megalith::ops
