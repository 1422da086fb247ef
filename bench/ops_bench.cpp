// Ops one by one, at the shapes of two models: GPT 6 x 384 (6 heads, T 256, batch 16, vocabulary 256) and GPT-2 124M
// (12 heads, T 256, batch 2, vocabulary 50304). GFLOP/s count 2 M N K for a product and half of the square for causal
// attention (7 products of a half square over forward and backward); GB/s count each tensor once.
#include <cstring>

#include <benchmark/benchmark.h>

#include "megalith/base/philox.h"
#include "megalith/ops/adamw.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/norm.h"
#include "megalith/tensor/step_state.h"

namespace megalith::ops {
namespace {

/// A tensor of small numbers.
Tensor random(Exec& ex, const Shape& shape, DType dtype = DType::f32) {
  const Tensor tensor = ex.tensor(shape, dtype);
  const RandomSite site{.seed = 1};
  dispatch_float(dtype, "bench", [&]<class T>() {
    for (Index i = 0; i < tensor.numel(); ++i) {
      tensor.data<T>()[i] = converted<T>(site.word(static_cast<std::uint64_t>(i)) / 4294967296.0 - 0.5);
    }
  });
  return tensor;
}

Tensor step_state(Exec& ex) {
  const Tensor tensor = ex.tensor({Index{sizeof(StepState)}}, DType::u8);
  const StepState state{.step = 1};
  std::memcpy(tensor.raw(), &state, sizeof state);
  return tensor;
}

Dropout dropout(Exec& ex, std::int64_t percent, Index seq_len) {
  return {.probability = static_cast<double>(percent) / 100,
          .seed = 1,
          .site = 1,
          .step_state = step_state(ex),
          .seq_len = seq_len};
}

void rate(benchmark::State& state, const char* name, double per_iteration) {
  state.counters[name] = benchmark::Counter(per_iteration * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

/// Arguments: M, N, K, and how the operands lie: 0 activations x weights^T, 1 gradients x weights, 2 gradients^T x
/// activations.
template <class T>
void matmul_of(benchmark::State& state) {
  Exec ex;
  const Index m = state.range(0), n = state.range(1), k = state.range(2);
  const Transpose ta = state.range(3) == 2 ? Transpose::yes : Transpose::no;
  const Transpose tb = state.range(3) == 0 ? Transpose::yes : Transpose::no;
  const Tensor a = random(ex, ta == Transpose::yes ? Shape{k, m} : Shape{m, k}, dtype_of<T>);
  const Tensor b = random(ex, tb == Transpose::yes ? Shape{n, k} : Shape{k, n}, dtype_of<T>);
  const Tensor c = ex.tensor({m, n}, dtype_of<T>);
  const Write write = state.range(3) == 2 ? Write::accumulate : Write::overwrite;
  for (auto _ : state) matmul(ex, {.a = a, .b = b, .c = c, .transpose_a = ta, .transpose_b = tb, .write = write});
  rate(state, "GFLOP/s", 2.0 * static_cast<double>(m * n * k));
}

void gpt_products(benchmark::internal::Benchmark* b) {
  struct Model {
    Index tokens, hidden, vocab;
  };
  for (const auto& [tokens, hidden, vocab] : {Model{4096, 384, 256}, Model{512, 768, 50304}}) {
    for (const auto& [out, in] : {std::pair{3 * hidden, hidden},
                                  {hidden, hidden},
                                  {4 * hidden, hidden},
                                  {hidden, 4 * hidden},
                                  {vocab, hidden}}) {
      b->Args({tokens, out, in, 0})->Args({tokens, in, out, 1})->Args({out, in, tokens, 2});
    }
  }
  b->Args({64, 128, 128, 0})->Args({1, 50304, 768, 0});
}
BENCHMARK(matmul_of<float>)->Name("matmul_f32")->Apply(gpt_products)->UseRealTime();
BENCHMARK(matmul_of<double>)->Name("matmul_f64")->Args({4096, 384, 384, 0})->Args({384, 384, 4096, 2})->UseRealTime();

/// Arguments: batch, seq_len, heads, head_dim, dropout in percent.
struct AttentionCase {
  explicit AttentionCase(const benchmark::State& state)
      : batch(state.range(0)), seq_len(state.range(1)), heads(state.range(2)), dim(state.range(3)) {
    qkv = random(ex, {batch * seq_len, 3 * heads * dim});
    out = random(ex, {batch * seq_len, heads * dim});
    dqkv = ex.tensor(qkv.shape(), DType::f32);
    lse = ex.tensor({batch, heads, seq_len}, DType::f32);
    drop = dropout(ex, state.range(4), seq_len);
  }
  void forward() {
    attention_forward(ex, {.qkv = qkv,
                           .out = out,
                           .log_sum_exp = lse,
                           .batch = batch,
                           .seq_len = seq_len,
                           .num_heads = heads,
                           .first_head = 0,
                           .num_global_heads = heads,
                           .dropout = drop});
  }
  void backward() {
    attention_backward(ex, {.dout = out,
                            .qkv = qkv,
                            .out = out,
                            .log_sum_exp = lse,
                            .dqkv = dqkv,
                            .batch = batch,
                            .seq_len = seq_len,
                            .num_heads = heads,
                            .first_head = 0,
                            .num_global_heads = heads,
                            .dropout = drop});
  }
  double one_product() const { return static_cast<double>(batch * heads * seq_len * seq_len * dim); }

  Exec ex;
  Index batch, seq_len, heads, dim;
  Tensor qkv, out, dqkv, lse;
  Dropout drop;
};

void attention_forward_of(benchmark::State& state) {
  AttentionCase c(state);
  for (auto _ : state) c.forward();
  rate(state, "GFLOP/s", 2 * c.one_product());
}
void attention_backward_of(benchmark::State& state) {
  AttentionCase c(state);
  c.forward();
  for (auto _ : state) c.backward();
  rate(state, "GFLOP/s", 5 * c.one_product());
}
void gpt_attention(benchmark::internal::Benchmark* b) {
  for (const Index percent : {0, 10})
    b->Args({16, 256, 6, 64, percent})->Args({2, 256, 12, 64, percent})->Args({2, 1024, 12, 64, percent});
}
BENCHMARK(attention_forward_of)->Name("attention_forward")->Apply(gpt_attention)->UseRealTime();
BENCHMARK(attention_backward_of)->Name("attention_backward")->Apply(gpt_attention)->UseRealTime();

/// Arguments: tokens, width.
void layer_norm_of(benchmark::State& state) {
  Exec ex;
  const Shape shape{state.range(0), state.range(1)};
  const Tensor x = random(ex, shape), gamma = random(ex, {shape[1]}), y = ex.tensor(shape, DType::f32);
  const Tensor mean = ex.tensor({shape[0]}, DType::f32), rstd = ex.tensor({shape[0]}, DType::f32);
  for (auto _ : state)
    layer_norm_forward(ex, {.x = x, .gamma = gamma, .beta = gamma, .y = y, .mean = mean, .rstd = rstd});
  rate(state, "GB/s", 2.0 * static_cast<double>(x.bytes()));
}
void layer_norm_backward_of(benchmark::State& state) {
  Exec ex, scratch;
  const Shape shape{state.range(0), state.range(1)};
  const Tensor x = random(ex, shape), dy = random(ex, shape), gamma = random(ex, {shape[1]}),
               dx = ex.tensor(shape, DType::f32);
  const Tensor mean = random(ex, {shape[0]}), rstd = random(ex, {shape[0]});
  const Tensor gamma_grad = random(ex, {shape[1]}), beta_grad = random(ex, {shape[1]});
  for (auto _ : state) {
    layer_norm_backward(scratch, {.dy = dy,
                                  .x = x,
                                  .gamma = gamma,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .residual = dy,
                                  .dx = dx,
                                  .gamma_grad = gamma_grad,
                                  .beta_grad = beta_grad});
    scratch.release();
  }
  rate(state, "GB/s", 6.0 * static_cast<double>(x.bytes()));
}
BENCHMARK(layer_norm_of)->Name("layer_norm")->Args({4096, 384})->Args({512, 768})->UseRealTime();
BENCHMARK(layer_norm_backward_of)->Name("layer_norm_backward")->Args({4096, 384})->Args({512, 768})->UseRealTime();

void bias_gelu_of(benchmark::State& state) {
  Exec ex;
  const Shape shape{state.range(0), state.range(1)};
  const Tensor x = random(ex, shape), y = ex.tensor(shape, DType::f32), bias = ex.tensor({shape[1]}, DType::f32);
  fill(ex, bias, 0);
  for (auto _ : state) bias_gelu(ex, {.x = x, .bias = bias, .y = y});
  rate(state, "GB/s", 3.0 * static_cast<double>(x.bytes()));
}
void gelu_backward_of(benchmark::State& state) {
  Exec ex;
  const Shape shape{state.range(0), state.range(1)};
  const Tensor z = random(ex, shape), dy = random(ex, shape), dz = ex.tensor(shape, DType::f32);
  for (auto _ : state) gelu_backward(ex, {.z = z, .dy = dy, .dz = dz});
  rate(state, "GB/s", 3.0 * static_cast<double>(z.bytes()));
}
void add_of(benchmark::State& state) {
  Exec ex;
  const Shape shape{state.range(0), state.range(1)};
  const Tensor a = random(ex, shape), b = random(ex, shape), out = ex.tensor(shape, DType::f32);
  for (auto _ : state) add(ex, a, b, out);
  rate(state, "GB/s", 3.0 * static_cast<double>(a.bytes()));
}
BENCHMARK(bias_gelu_of)->Name("bias_gelu")->Args({4096, 1536})->Args({512, 3072})->UseRealTime();
BENCHMARK(gelu_backward_of)->Name("gelu_backward")->Args({4096, 1536})->Args({512, 3072})->UseRealTime();
BENCHMARK(add_of)->Name("add")->Args({4096, 384})->Args({512, 768})->UseRealTime();

/// Arguments: tokens, width, dropout in percent.
void bias_dropout_residual_of(benchmark::State& state) {
  Exec ex;
  const Shape shape{state.range(0), state.range(1)};
  const Tensor x = random(ex, shape), residual = random(ex, shape), bias = random(ex, {shape[1]}),
               out = ex.tensor(shape, DType::f32);
  const Dropout drop = dropout(ex, state.range(2), 256);
  for (auto _ : state)
    bias_dropout_residual(ex, {.x = x, .bias = bias, .residual = residual, .out = out, .dropout = drop});
  rate(state, "GB/s", 3.0 * static_cast<double>(x.bytes()));
  rate(state, "Gelement/s", static_cast<double>(x.numel()));
}
BENCHMARK(bias_dropout_residual_of)
    ->Name("bias_dropout_residual")
    ->Args({4096, 384, 0})
    ->Args({4096, 384, 10})
    ->Args({512, 768, 10})
    ->UseRealTime();

/// Argument: parameters.
void adamw_of(benchmark::State& state) {
  Exec ex;
  const Shape shape{state.range(0)};
  const Tensor w = random(ex, shape), m = random(ex, shape), v = ex.tensor(shape, DType::f32), grad = random(ex, shape);
  fill(ex, v, 1);
  const Tensor verdict = ex.tensor({Index{sizeof(StepVerdict)}}, DType::u8);
  const StepVerdict apply{.apply = 1, .factor = 1, .learning_rate = 1e-6, .update = 10};
  std::memcpy(verdict.raw(), &apply, sizeof apply);
  const Tensor decays = ex.tensor({ceil_div(shape[0], kDecayGroup)}, DType::u8);
  std::memset(decays.raw(), 1, static_cast<std::size_t>(decays.bytes()));
  for (auto _ : state) adamw(ex, {.value = w, .m = m, .v = v, .grad = grad, .decays = decays, .verdict = verdict});
  rate(state, "GB/s", 7.0 * static_cast<double>(w.bytes()));
}
BENCHMARK(adamw_of)->Name("adamw")->Arg(10'700'000)->Arg(124'000'000)->UseRealTime();

/// Arguments: tokens, vocabulary. Statistics, exponentials, loss and gradient: what follows the vocabulary product.
void cross_entropy_of(benchmark::State& state) {
  Exec ex;
  const Index tokens = state.range(0), vocab = state.range(1);
  const Tensor z = random(ex, {tokens, vocab}), max = ex.tensor({tokens}, DType::f32),
               sums = ex.tensor({2, tokens}, DType::f32);
  const Tensor targets = ex.tensor({tokens}, DType::i32), loss = ex.tensor({tokens}, DType::f32),
               sum = ex.tensor({1}, DType::f64);
  std::memset(targets.raw(), 0, static_cast<std::size_t>(targets.bytes()));
  const Tensor device_state = step_state(ex);
  for (auto _ : state) {
    logits_max(ex, z, max, 0, vocab);
    logits_sum_exp(ex,
                   {.logits = z, .row_max = max, .targets = targets, .sums = sums, .first_id = 0, .vocab_size = vocab});
    loss_from_sums(ex, {.sums = sums, .targets = targets, .loss = loss, .loss_sum = sum, .vocab_size = vocab});
    logits_backward(ex, {.logits = z, .sums = sums, .targets = targets, .step_state = device_state, .first_id = 0});
  }
  rate(state, "GB/s", 5.0 * static_cast<double>(z.bytes()));
}
BENCHMARK(cross_entropy_of)->Name("cross_entropy")->Args({4096, 256})->Args({512, 50304})->UseRealTime();

}  // namespace
}  // namespace megalith::ops
