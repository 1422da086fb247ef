#include <array>

#include "megalith/ops/adamw.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/embedding.h"
#include "megalith/ops/norm.h"

#include "tests/gpu/large_tensors.h"
#include "tests/support/split_masters.h"

namespace megalith::ops {
namespace {

/// Zeroing takes a millisecond for each of the large ones.
TEST_F(GpuLarge, MemoryIsZeroedBeforeItIsHandedOut) {
  for (int i = 0; i < 3; ++i) empty({Index{1} << 32}, DType::u8);
  const Tensor small = empty({1000}, DType::f32);
  fill(ex(), small, 1);
  ex().synchronize();
  empty({Index{1} << 20}, DType::u8);  // after all zeroing
  std::vector<float> values(1000);
  ex().copy(values.data(), small.raw(), small.bytes());
  ex().synchronize();
  EXPECT_EQ(values, std::vector<float>(1000, 1.0f));
}

TEST_F(GpuLarge, ElementwiseAndNorms) {
  const Index hidden = 1536;
  const Tensor x = random({rows_of(hidden), hidden}), bias = random({hidden}), last = copied(tail(x));
  struct Results {
    Tensor sum, y, dx, z, gelu;
  };
  const auto run = [&](const Tensor& in) {
    const Index n = in.dim(0);
    const Results out{empty(in.shape()), empty(in.shape()), empty(in.shape()), empty(in.shape()), empty(in.shape())};
    const Tensor mean = empty({n}, DType::f32), rstd = empty({n}, DType::f32);
    residual_norm(ex(), {.x = in,
                         .bias = bias,
                         .residual = in,
                         .gamma = bias,
                         .beta = bias,
                         .sum = out.sum,
                         .y = out.y,
                         .mean = mean,
                         .rstd = rstd,
                         .dropout = {}});
    const Tensor gamma_grad = empty({hidden}, DType::f32), beta_grad = empty({hidden}, DType::f32);
    norm_backward(ex(), {.dy = out.y,
                         .x = out.sum,
                         .gamma = bias,
                         .mean = mean,
                         .rstd = rstd,
                         .residual = in,
                         .dx = out.dx,
                         .gamma_grad = gamma_grad,
                         .beta_grad = beta_grad});
    add(ex(), out.sum, out.dx, out.z);
    bias_gelu(ex(), {.x = out.z, .bias = bias, .y = out.gelu});
    return out;
  };
  const Results all = run(x), few = run(last);
  expect_same_bytes(tail(all.sum), few.sum, "the last rows of residual_norm's sum");
  expect_same_bytes(tail(all.y), few.y, "of residual_norm");
  expect_same_bytes(tail(all.dx), few.dx, "of norm_backward");
  expect_same_bytes(tail(all.z), few.z, "of bias_gelu's z");
  expect_same_bytes(tail(all.gelu), few.gelu, "of bias_gelu");
}

TEST_F(GpuLarge, NormBiasAndScale) {
  const Index hidden = 1536;
  const Tensor x = random({rows_of(hidden), hidden}), bias = random({hidden}), last = copied(tail(x));
  struct Results {
    Tensor y, mean, rstd;
  };
  const auto normed = [&](const Tensor& in) {
    const Index n = in.dim(0);
    const Results out{empty(in.shape()), empty({n}, DType::f32), empty({n}, DType::f32)};
    norm_forward(ex(), {.x = in, .gamma = bias, .beta = bias, .y = out.y, .mean = out.mean, .rstd = out.rstd});
    return out;
  };
  const Results all = normed(x), few = normed(last);
  expect_same_bytes(tail(all.y), few.y, "the last rows of norm_forward");
  expect_same_bytes(tail(all.mean), few.mean, "their means");
  expect_same_bytes(tail(all.rstd), few.rstd, "their reciprocal standard deviations");
  for (const Tensor& in : {x, last}) add_bias(ex(), in, bias);
  expect_same_bytes(tail(x), last, "the last rows of add_bias");
  for (const Tensor& in : {x, last}) scale(ex(), in, 0.3);
  expect_same_bytes(tail(x), last, "of scale");
}

/// Rows that fit shared memory, rows that do not, and those of an evaluation, which asks for no gradient: the latter
/// two take the kernel of a block a row.
TEST_F(GpuLarge, CrossEntropy) {
  struct Case {
    const char* name;
    Index vocab;
    bool trains;
  };
  for (const auto& [name, vocab, trains] :
       {Case{"training", 50304, true}, Case{"wide rows", 131072, true}, Case{"evaluation", 50304, false}}) {
    SCOPED_TRACE(name);
    const Index tokens = rows_of(vocab);
    const Tensor z = random({tokens, vocab}), last = copied(tail(z)), targets = empty({tokens}, DType::i32);
    ex().run({.name = "zero", .reads = {}, .writes = {targets}}, [&](Exec&, Stream stream) {
      device::fill_bytes(Device::cuda, targets.raw(), 0, targets.bytes(), stream);
    });
    const Tensor state = trains ? structure(StepState{.loss_scale = 0.5}) : Tensor(), sum = empty({1}, DType::f64);
    const auto run = [&](const Tensor& logits) {
      const Tensor loss = empty({logits.dim(0)}, DType::f32);
      cross_entropy(ex(), {.logits = logits,
                           .targets = targets.rows(0, logits.dim(0)),
                           .step_state = state,
                           .loss = loss,
                           .loss_sum = sum,
                           .vocab_size = vocab});
      return loss;
    };
    const Tensor loss = run(z), last_loss = run(last);
    if (trains) expect_same_bytes(tail(z), last, "gradients of the last rows");
    expect_same_bytes(tail(loss), last_loss, "losses of the last rows");
    ex().release();
  }
}

TEST_F(GpuLarge, Embedding) {
  const Index hidden = 2048, tokens = rows_of(hidden), held = 64;
  std::vector<std::int32_t> host(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(held));
  const Tensor ids = empty({tokens}, DType::i32), table = random({held, hidden}), y = empty({tokens, hidden});
  ex().copy(ids.raw(), host.data(), ids.bytes());
  embedding_forward(ex(), {.ids = ids, .table = table, .y = y, .first_id = 0, .vocab_size = held});
  const Tensor few = empty({kTail, hidden});
  embedding_forward(ex(), {.ids = tail(ids), .table = table, .y = few, .first_id = 0, .vocab_size = held});
  expect_same_bytes(tail(y), few, "the last rows");
}

TEST_F(GpuLarge, DropoutAndGeluBackward) {
  const Index hidden = 1536, rows = rows_of(hidden);
  const Tensor x = random({rows, hidden}), bias = random({hidden}), last = copied(tail(x));
  const Tensor state = structure(StepState{.step = 5});
  const auto run = [&](const Tensor& in) {
    const Index first_row = rows - in.dim(0);
    const Dropout dropout{
        .probability = 0.1, .seed = 3, .site = 2, .step_state = state, .seq_len = rows, .first_row = first_row};
    const std::array out = {empty(in.shape()), empty(in.shape()), empty(in.shape())};
    bias_dropout_residual(ex(), {.x = in, .bias = bias, .residual = in, .out = out[0], .dropout = dropout});
    dropout_backward(ex(), {.dout = in, .dx = out[1], .dropout = dropout});
    gelu_backward(ex(), {.z = in, .dy = out[0], .dz = out[2]});
    return out;
  };
  const auto all = run(x), few = run(last);
  expect_same_bytes(tail(all[0]), few[0], "the last rows of bias_dropout_residual");
  expect_same_bytes(tail(all[1]), few[1], "of dropout_backward");
  expect_same_bytes(tail(all[2]), few[2], "of gelu_backward");
}

/// Ones, and threes in the last rows: sums that f32 holds exactly.
TEST_F(GpuLarge, SumsOverRows) {
  const Index hidden = 1536, rows = rows_of(hidden);
  const Tensor dy = filled({rows, hidden}, 1), sums = filled({hidden}, 0, DType::f32);
  fill(ex(), tail(dy), 3);
  const auto want = static_cast<double>(rows + 2 * kTail);
  bias_backward(ex(), dy, sums);
  expect_all(sums, want, "bias_backward");

  const Tensor gamma_grad = filled({hidden}, 0, DType::f32), beta_grad = filled({hidden}, 0, DType::f32);
  const Tensor mean = filled({rows}, 0, DType::f32), rstd = filled({rows}, 1, DType::f32);
  norm_backward(ex(), {.dy = dy,
                       .x = dy,
                       .gamma = filled({hidden}, 1),
                       .mean = mean,
                       .rstd = rstd,
                       .residual = {},
                       .dx = empty(dy.shape()),
                       .gamma_grad = gamma_grad,
                       .beta_grad = beta_grad});
  expect_all(beta_grad, want, "gradient of beta");
  expect_all(gamma_grad, want + 6 * kTail, "gradient of gamma, of squares");
}

TEST_F(GpuLarge, SumOfSquares) {
  const Index n = (Index{1} << 31) + 3 * kTail;
  const Tensor x = filled({1, n}, 1, DType::f32), total = filled({1}, 0, DType::f64);
  fill(ex(), tail(x.reshaped({n})), 2);
  const Tensor sums = empty({1, square_blocks(Device::cuda, n)}, DType::f64);
  sum_of_squares(ex(), x, sums);
  add_up(ex(), sums.reshaped({sums.numel()}), total);
  expect_all(total, static_cast<double>(n + 3 * kTail), "the sum of squares");
}

TEST_F(GpuLarge, AdamW) {
  const Index n = (Index{1} << 31) + 3 * kTail * kDecayGroup, last = kTail * kDecayGroup;
  const auto random_f32 = [&] {
    const Tensor tensor = empty({n}, DType::f32);
    initialise(ex(), {{"large", {n}, {}, {n}}, Init::normal, 1}, tensor, 3);
    return tensor;
  };
  const Tensor value = random_f32(), grad = random_f32(), decays = empty({n / kDecayGroup}, DType::u8);
  ex().run({.name = "ones", .reads = {}, .writes = {decays}},
           [&](Exec&, Stream stream) { device::fill_bytes(Device::cuda, decays.raw(), 1, decays.bytes(), stream); });
  const Tensor verdict = structure(StepVerdict{.apply = 1, .factor = 0.5, .learning_rate = 1e-3, .update = 1});
  const auto part = [&](const Tensor& tensor) { return copied(tail(tensor, tensor.dim(0) == n ? last : kTail)); };
  const auto run = [&](const Tensor& w, const Tensor& g, const Tensor& d) {
    const MasterValues masters = support::split_of(ex(), w);
    const std::array out = {masters.copy, filled(w.shape(), 0.25, DType::f32), filled(w.shape(), 0.5, DType::f32), w};
    adamw(ex(), {.masters = masters,
                 .m = out[1],
                 .v = out[2],
                 .grad = g,
                 .decays = d,
                 .verdict = verdict,
                 .weight_decay = 0.1});
    read_masters(ex(), masters, w);
    return out;
  };
  const auto few = run(part(value), part(grad), tail(decays));
  const auto all = run(value, grad, decays);
  constexpr std::array kNames = {"the last copies", "m", "v", "masters"};
  for (std::size_t i = 0; i < all.size(); ++i) expect_same_bytes(tail(all[i], last), few[i], kNames[i]);
}

/// x [tokens, 1536] of 2^31 numbers, into and out of a product with few columns, and gradients of weights.
TEST_F(GpuLarge, Products) {
  const Index hidden = 1536, few_columns = 64, rows = rows_of(hidden), last = 256;
  const Tensor x = random({rows, hidden}), w = random({few_columns, hidden}), x_tail = copied(tail(x, last));
  const auto forward = [&](const Tensor& in) {
    const Tensor y = empty({in.dim(0), few_columns});
    matmul(ex(), {.a = in, .b = w, .c = y, .transpose_b = Transpose::yes});
    return y;
  };
  const Tensor y = forward(x), y_tail = forward(x_tail);
  expect_close(tail(y, last), y_tail, 0.01, "the last rows of a product");

  const auto back = [&](const Tensor& dy) {
    const Tensor dx = empty({dy.dim(0), hidden});
    matmul(ex(), {.a = dy, .b = w, .c = dx});
    return dx;
  };
  expect_close(tail(back(y), last), back(y_tail), 0.02, "the last rows of a gradient");

  // Only the last rows have a gradient.
  const Tensor dy = filled({rows, few_columns}, 0);
  copy(ex(), y_tail, tail(dy, last));
  const auto weights = [&](const Tensor& gradient, const Tensor& in) {
    const Tensor dw = filled({few_columns, hidden}, 0, DType::f32);
    matmul(ex(), {.a = gradient, .b = in, .c = dw, .transpose_a = Transpose::yes, .write = Write::accumulate});
    return dw;
  };
  expect_close(weights(dy, x), weights(y_tail, x_tail), 1e-3, "the gradient of weights");
}

TEST_F(GpuLarge, ProductsWithGelu) {
  const Index ffn = 1536, width = 64, rows = rows_of(ffn) / 256 * 256 + 256, last = 256;
  const Tensor x = random({rows, width}), w = random({ffn, width}), bias = random({ffn}),
               x_tail = copied(tail(x, last));
  struct Results {
    Tensor z, y;
  };
  const auto forward = [&](const Tensor& in) {
    const Results out{empty({in.dim(0), ffn}), empty({in.dim(0), ffn})};
    matmul_gelu(ex(), {.x = in, .w = w, .bias = bias, .z = out.z, .y = out.y});
    return out;
  };
  const Results all = forward(x), few = forward(x_tail);
  expect_close(tail(all.z, last), few.z, 0.01, "z of the last rows");
  expect_close(tail(all.y, last), few.y, 0.01, "y of the last rows");

  const Tensor back = random({width, ffn});
  const auto backward = [&](const Tensor& dy, const Tensor& z) {
    const Tensor dz = empty(z.shape());
    matmul_gelu_backward(ex(), {.dy = dy, .w = back, .z = z, .dz = dz, .bias_grad = filled({ffn}, 0, DType::f32)});
    return dz;
  };
  expect_close(tail(backward(x, all.z), last), backward(x_tail, few.z), 0.02, "dz of the last rows");
}

/// By the library, and by our own kernel where there is dropout: the last sample against that sample alone.
TEST_F(GpuLarge, Attention) {
  const Index seq_len = 1024, heads = 16, head_dim = 64, width = heads * head_dim;
  const Index batch = (Index{1} << 31) / (seq_len * 3 * width) + 2;
  ex().set_determinism(Determinism::not_required);  // whose backward pass takes less scratch
  const Tensor qkv = random({batch * seq_len, 3 * width}), last = copied(tail(qkv, seq_len));
  const Tensor dout = random({batch * seq_len, width}), last_dout = copied(tail(dout, seq_len));
  const Tensor state = structure(StepState{.step = 5});
  for (const double probability : {0.0, 0.1}) {
    SCOPED_TRACE(::testing::Message() << "dropout " << probability);
    const auto run = [&](const Tensor& in, const Tensor& gradient) {
      const Index samples = in.dim(0) / seq_len;
      const Dropout dropout{.probability = probability,
                            .seed = 3,
                            .site = 2,
                            .step_state = state,
                            .seq_len = seq_len,
                            .first_row = (batch - samples) * seq_len};
      const Tensor sums = empty({samples, heads, seq_len}, DType::f32);
      const std::array out = {empty(gradient.shape()), empty(in.shape())};
      attention_forward(ex(), {.qkv = in,
                               .out = out[0],
                               .log_sum_exp = sums,
                               .batch = samples,
                               .seq_len = seq_len,
                               .num_heads = heads,
                               .num_global_heads = heads,
                               .dropout = dropout});
      attention_backward(ex(), {.dout = gradient,
                                .qkv = in,
                                .out = out[0],
                                .log_sum_exp = sums,
                                .dqkv = out[1],
                                .batch = samples,
                                .seq_len = seq_len,
                                .num_heads = heads,
                                .num_global_heads = heads,
                                .dropout = dropout});
      return out;
    };
    const auto all = run(qkv, dout), few = run(last, last_dout);
    expect_close(tail(all[0], seq_len), few[0], 1e-3, "the last sample's result");
    expect_close(tail(all[1], seq_len), few[1], 0.01, "its gradient");
  }
}

/// Ids that come once in the last rows alone, and there one by one.
TEST_F(GpuLarge, EmbeddingBackward) {
  const Index hidden = 2048, tokens = rows_of(hidden), held = 64 + kTail;
  std::vector<std::int32_t> host(static_cast<std::size_t>(tokens));
  for (Index i = 0; i < tokens; ++i)
    host[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(i < tokens - kTail ? i % 64 : 64 + i - (tokens - kTail));
  const Tensor ids = empty({tokens}, DType::i32), dy = filled({tokens, hidden}, 1),
               grad = filled({held, hidden}, 0, DType::f32), rare = random({kTail, hidden});
  copy(ex(), rare, tail(dy));
  ex().copy(ids.raw(), host.data(), ids.bytes());
  embedding_backward(ex(), {.ids = ids, .dy = dy, .table_grad = grad, .first_id = 0});
  const Tensor want = empty({kTail, hidden}, DType::f32);
  cast(ex(), rare, want);
  expect_same_bytes(tail(grad), want, "the gradient of ids in the last rows");
  for (const Index id : {0, 1, 63}) {
    const Index times = (tokens - kTail) / 64 + (id < (tokens - kTail) % 64 ? 1 : 0);
    expect_all(grad.rows(id, 1), static_cast<double>(times), "the gradient of ids that come often");
  }
}

TEST_F(GpuLarge, Positions) {
  const Index hidden = 2048, seq_len = kTail, tokens = rows_of(hidden);
  ASSERT_EQ(tokens % seq_len, 0);
  const Tensor x = random({tokens, hidden}), position = random({seq_len, hidden}), y = empty(x.shape()),
               few = empty({seq_len, hidden});
  const auto dropout = [&](Index first_row) {
    return Dropout{.step_state = {}, .seq_len = seq_len, .first_row = first_row};
  };
  add_position(ex(), {.x = x, .position = position, .y = y, .dropout = dropout(0)});
  add_position(ex(), {.x = copied(tail(x)), .position = position, .y = few, .dropout = dropout(tokens - kTail)});
  expect_same_bytes(tail(y), few, "the last rows of add_position");

  const Tensor dy = filled({tokens, hidden}, 1), grad = filled({seq_len, hidden}, 0, DType::f32);
  fill(ex(), tail(dy), 3);
  position_backward(ex(), dy, grad);
  expect_all(grad, static_cast<double>(tokens / seq_len + 2), "position_backward");
}

/// The passes of a vocabulary that is split.
TEST_F(GpuLarge, SplitCrossEntropy) {
  const Index vocab = 50304, tokens = rows_of(vocab);
  const Tensor z = random({tokens, vocab}), last = copied(tail(z)), targets = empty({tokens}, DType::i32);
  ex().run({.name = "zero", .reads = {}, .writes = {targets}},
           [&](Exec&, Stream stream) { device::fill_bytes(Device::cuda, targets.raw(), 0, targets.bytes(), stream); });
  const Tensor state = structure(StepState{.loss_scale = 0.5});
  const auto run = [&](const Tensor& logits) {
    const Index rows = logits.dim(0);
    const Tensor row_max = empty({rows}, DType::f32), sums = empty({2, rows}, DType::f32);
    const Tensor mine = targets.rows(0, rows);
    logits_max(ex(), logits, row_max, 0, vocab);
    logits_sum_exp(ex(), {.logits = logits, .row_max = row_max, .targets = mine, .sums = sums, .vocab_size = vocab});
    logits_backward(ex(), {.logits = logits, .sums = sums, .targets = mine, .step_state = state});
    return sums.rows(0, 1).reshaped({rows});
  };
  const Tensor sums = run(z), last_sums = run(last);
  expect_same_bytes(tail(z), last, "gradients of the last rows");
  expect_same_bytes(tail(sums), last_sums, "sums of the last rows");
}

/// Against the numbers that a slice of the last elements begins with, and against a cast of it alone.
TEST_F(GpuLarge, FirstValuesAndCasts) {
  const Index n = (Index{1} << 31) + 3 * kTail;
  const Tensor all = empty({n}, DType::f32), few = empty({kTail}, DType::f32);
  initialise(ex(), {{"large", {n}, {}, {n}}, Init::normal, 1}, all, 3);
  initialise(ex(), {{"large", {n}, {n - kTail}, {kTail}}, Init::normal, 1}, few, 3);
  expect_same_bytes(tail(all), few, "the last first values");
  const Tensor narrow = empty({n}), few_narrow = empty({kTail}), wide = empty({n}, DType::f32),
               few_wide = empty({kTail}, DType::f32);
  cast(ex(), all, narrow);
  cast(ex(), few, few_narrow);
  expect_same_bytes(tail(narrow), few_narrow, "the last of a cast to bf16");
  cast(ex(), narrow, wide);
  cast(ex(), few_narrow, few_wide);
  expect_same_bytes(tail(wide), few_wide, "the last of a cast to f32");
}

}  // namespace
}  // namespace megalith::ops
