#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/ops/adamw.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/embedding.h"
#include "megalith/ops/init.h"
#include "megalith/ops/masters.h"
#include "megalith/ops/matmul.h"
#include "megalith/ops/norm.h"
#include "megalith/ops/rope.h"
#include "megalith/ops/rows.h"
#include "megalith/ops/swiglu.h"
#include "megalith/runtime/step_state.h"

#include "apps/bench/bench.h"
#include "apps/bench/bench_fp8.h"
#include "apps/bench/bench_grouped.h"
#include "apps/bench/ops_runner.h"

namespace megalith::apps {
namespace {

/// The GEMMs of a Transformer layer and of the head: forward, and both gradients.
void bench_gemm(const OpsBench& o) {
  if (!o.kernels.empty() && (o.precision != "fp8" || o.device != "cuda"))
    throw ConfigError("--kernel: is for --precision fp8 --device cuda; a CPU has one kernel");
  if (o.precision == "fp8") return bench_fp8(o);
  if (!o.models.empty()) throw ConfigError("--model: is for --precision fp8; give --hidden and --tokens instead");
  OpsRunner bench(o);
  bench.measure_roofs();
  Exec& ex = bench.ex();
  struct Layer {
    const char* name;
    Index in, out;
  };
  const Index h = o.hidden, t = o.tokens;
  for (const auto& [name, in, out] : {Layer{"qkv", h, 3 * h}, Layer{"out", h, h}, Layer{"up", h, 4 * h},
                                      Layer{"down", 4 * h, h}, Layer{"head", h, o.vocab}}) {
    const Tensor x = bench.random({t, in}), w = bench.random({out, in}), bias = bench.random({out}),
                 y = bench.empty({t, out}), z = bench.empty({t, out});
    const Tensor dy = bench.random({t, out}), dx = bench.empty({t, in}), dw = bench.gradient({out, in}),
                 sums = bench.gradient({out}), in_sums = bench.gradient({in});
    const Tensor saved = bench.random({t, in});
    const double flops = 2.0 * static_cast<double>(t) * static_cast<double>(in) * static_cast<double>(out);
    const auto measure = [&](const char* what, const std::function<void(Exec&)>& op) {
      bench.measure(str(name, " ", t, " x ", out, " x ", in, " ", what), flops, 0, op);
    };
    constexpr auto kTurned = ops::Transpose::yes;
    measure("forward", [&](Exec& e) { ops::matmul(e, {.a = x, .b = w, .c = y, .transpose_b = kTurned}); });
    measure("forward + bias",
            [&](Exec& e) { ops::matmul(e, {.a = x, .b = w, .bias = bias, .c = y, .transpose_b = kTurned}); });
    measure("dgrad", [&](Exec& e) { ops::matmul(e, {.a = dy, .b = w, .c = dx}); });
    measure("wgrad", [&](Exec& e) { ops::matmul(e, {.a = dy, .b = x, .c = dw, .transpose_a = kTurned}); });
    measure("wgrad, added", [&](Exec& e) {
      ops::matmul(e, {.a = dy, .b = x, .c = dw, .transpose_a = kTurned, .write = ops::Write::accumulate});
    });
    measure("wgrad + bias grad",
            [&](Exec& e) { ops::matmul(e, {.a = dy, .b = x, .c = dw, .bias_grad = sums, .transpose_a = kTurned}); });
    bench.measure(str(name, " ", t, " x ", out, " x ", in, " bias grad alone"), 0, static_cast<double>(dy.bytes()),
                  [&](Exec& e) { ops::bias_backward(e, dy, sums); });
    if (std::string_view(name) == "up")
      measure("forward + bias + gelu",
              [&](Exec& e) { ops::matmul_gelu(e, {.x = x, .w = w, .bias = bias, .z = z, .y = y}); });
    if (std::string_view(name) == "down")
      measure("dgrad + gelu' + bias grad", [&](Exec& e) {
        ops::matmul_gelu_backward(e, {.dy = dy, .w = w, .z = saved, .dz = dx, .bias_grad = in_sums});
      });
    ex.synchronize();
    ex.release();
  }
  bench.print();
}

void bench_attention(const OpsBench& o) {
  OpsRunner bench(o);
  Exec& ex = bench.ex();
  const Index batch = std::max<Index>(1, o.tokens / o.seq), tokens = batch * o.seq, head_dim = o.hidden / o.heads;
  if (head_dim * o.heads != o.hidden)
    throw ConfigError(str("--heads = ", o.heads, ": must divide --hidden = ", o.hidden));
  if (ex.device() == Device::cuda && head_dim > ops::kMaxHeadDimOnGpu)
    throw ConfigError(str("--heads = ", o.heads, ": a head is ", head_dim, " wide, must be at most ",
                          ops::kMaxHeadDimOnGpu, " on a GPU; use more heads"));
  bench.measure_roofs();
  const Tensor qkv = bench.random({tokens, 3 * o.hidden}), out = bench.empty({tokens, o.hidden}),
               dout = bench.random({tokens, o.hidden}), dqkv = bench.empty(qkv.shape());
  const Tensor lse = ex.tensor({batch, o.heads, o.seq}, statistics_dtype(bench.dtype()));
  // Two GEMMs forward and five backward, over the half of the scores that the causal mask keeps.
  const double product = static_cast<double>(batch * o.heads) * static_cast<double>(o.seq) *
                         static_cast<double>(o.seq) * static_cast<double>(head_dim);
  const Tensor state = bench.on_device(StepState{.step = 1});
  const ops::Dropout dropout{.probability = o.dropout, .step_state = state, .seq_len = o.seq};
  bench.measure("attention forward", 2 * product, 0, [&](Exec& e) {
    ops::attention_forward(e, {.qkv = qkv,
                               .out = out,
                               .log_sum_exp = lse,
                               .batch = batch,
                               .seq_len = o.seq,
                               .num_heads = o.heads,
                               .num_global_heads = o.heads,
                               .dropout = dropout});
  });
  bench.measure("attention backward", 5 * product, 0, [&](Exec& e) {
    ops::attention_backward(e, {.dout = dout,
                                .qkv = qkv,
                                .out = out,
                                .log_sum_exp = lse,
                                .dqkv = dqkv,
                                .batch = batch,
                                .seq_len = o.seq,
                                .num_heads = o.heads,
                                .num_global_heads = o.heads,
                                .dropout = dropout});
  });
  bench.print();
}

void bench_norm(const OpsBench& o) {
  OpsRunner bench(o);
  Exec& ex = bench.ex();
  if (ex.device() == Device::cuda && o.hidden > ops::kMaxNormColumnsOnGpu)
    throw ConfigError(str("--hidden = ", o.hidden, ": must be at most ", ops::kMaxNormColumnsOnGpu, " on a GPU"));
  bench.measure_roofs();
  const Shape shape{o.tokens, o.hidden}, row{o.hidden};
  const Tensor x = bench.random(shape), gamma = bench.random(row), beta = bench.random(row), y = bench.empty(shape),
               sum = bench.empty(shape), dx = bench.empty(shape);
  const Tensor mean = ex.tensor({o.tokens}, statistics_dtype(bench.dtype())),
               rstd = ex.tensor({o.tokens}, statistics_dtype(bench.dtype()));
  const Tensor residual = bench.random(shape), dy = bench.random(shape), gamma_grad = bench.gradient(row),
               beta_grad = bench.gradient(row);
  const double one = static_cast<double>(x.bytes());
  bench.measure("layer_norm", 0, 2 * one, [&](Exec& e) {
    ops::norm_forward(e, {.x = x, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
  });
  bench.measure("residual_layer_norm", 0, 4 * one, [&](Exec& e) {
    ops::residual_norm(e, {.x = x,
                           .bias = beta,
                           .residual = residual,
                           .gamma = gamma,
                           .beta = beta,
                           .sum = sum,
                           .y = y,
                           .mean = mean,
                           .rstd = rstd,
                           .dropout = {}});
  });
  ops::NormBackward backward{.dy = dy,
                             .x = x,
                             .gamma = gamma,
                             .mean = mean,
                             .rstd = rstd,
                             .residual = residual,
                             .dx = dx,
                             .gamma_grad = gamma_grad,
                             .beta_grad = beta_grad};
  const auto run_backward = [&](Exec& e) { ops::norm_backward(e, backward); };
  bench.measure("layer_norm_backward + residual", 0, 4 * one, run_backward);
  backward.bias_grad = bench.gradient(row);
  bench.measure("layer_norm_backward + residual + sums", 0, 4 * one, run_backward);
  bench.measure("bias_dropout_residual", 0, 3 * one, [&](Exec& e) {
    ops::bias_dropout_residual(e, {.x = x, .bias = beta, .residual = residual, .out = y, .dropout = {}});
  });
  bench.measure("rms_norm", 0, 2 * one,
                [&](Exec& e) { ops::norm_forward(e, {.x = x, .gamma = gamma, .y = y, .rstd = rstd}); });
  bench.measure("residual_rms_norm", 0, 4 * one, [&](Exec& e) {
    ops::residual_norm(
        e, {.x = x, .bias = {}, .residual = residual, .gamma = gamma, .sum = sum, .y = y, .rstd = rstd, .dropout = {}});
  });
  bench.measure("rms_norm_backward + residual", 0, 4 * one, [&](Exec& e) {
    ops::norm_backward(
        e, {.dy = dy, .x = x, .gamma = gamma, .rstd = rstd, .residual = residual, .dx = dx, .gamma_grad = gamma_grad});
  });
  bench.print();
}

/// Ops that are not fused into a GEMM or a norm.
void bench_elementwise(const OpsBench& o) {
  OpsRunner bench(o);
  bench.measure_roofs();
  const Shape shape{o.tokens, o.hidden};
  const Tensor x = bench.random(shape), dy = bench.random(shape), bias = bench.random({o.hidden}),
               y = bench.empty(shape), wide = bench.gradient(shape);
  const double one = static_cast<double>(x.bytes());
  bench.measure("bias_gelu", 0, 3 * one, [&](Exec& e) { ops::bias_gelu(e, {.x = x, .bias = bias, .y = y}); });
  bench.measure("gelu_backward", 0, 3 * one, [&](Exec& e) { ops::gelu_backward(e, {.z = x, .dy = dy, .dz = y}); });
  bench.measure("add", 0, 3 * one, [&](Exec& e) { ops::add(e, x, dy, y); });
  bench.measure("cast", 0, one + static_cast<double>(wide.bytes()), [&](Exec& e) { ops::cast(e, wide, y); });
  const Tensor state = bench.on_device(StepState{.step = 1});
  const ops::Dropout dropout{.probability = 0.1, .step_state = state, .seq_len = o.seq};
  bench.measure("bias_dropout_residual, dropout 0.1", 0, 3 * one, [&](Exec& e) {
    ops::bias_dropout_residual(e, {.x = x, .bias = bias, .residual = dy, .out = y, .dropout = dropout});
  });
  bench.measure("dropout_backward, dropout 0.1", 0, 2 * one,
                [&](Exec& e) { ops::dropout_backward(e, {.dout = dy, .dx = y, .dropout = dropout}); });
  bench.print();
}

/// RoPE and SwiGLU of a Llama layer. The width of the MLP is --ffn.
void bench_llama(const OpsBench& o) {
  OpsRunner bench(o);
  if (o.hidden % (2 * o.heads) != 0)
    throw ConfigError(str("--heads = ", o.heads, ": twice as many must divide --hidden = ", o.hidden));
  bench.measure_roofs();
  const Index head_dim = o.hidden / o.heads;
  const Tensor qkv = bench.random({o.tokens, 3 * o.hidden}),
               table = bench.empty({o.seq, 2, head_dim / 2}, statistics_dtype(bench.dtype()));
  ops::rope_table(bench.ex(), {.head_dim = head_dim}, table);
  // v is not rotated.
  const double turned = 2.0 * 2 / 3 * static_cast<double>(qkv.bytes());
  for (const auto direction : {ops::RopeDirection::forward, ops::RopeDirection::backward}) {
    bench.measure(direction == ops::RopeDirection::forward ? "rope" : "rope, backward", 0, turned, [&](Exec& e) {
      ops::rope(e, {.qkv = qkv,
                    .table = table,
                    .num_heads = o.heads,
                    .num_kv_heads = o.heads,
                    .seq_len = o.seq,
                    .direction = direction});
    });
  }
  const Tensor gate_up = bench.random({o.tokens, 2 * o.ffn}), dy = bench.random({o.tokens, o.ffn}),
               y = bench.empty({o.tokens, o.ffn}), d_gate_up = bench.empty({o.tokens, 2 * o.ffn});
  const double one = static_cast<double>(y.bytes());
  bench.measure("swiglu", 0, 3 * one, [&](Exec& e) { ops::swiglu(e, {.gate_up = gate_up, .y = y}); });
  bench.measure("swiglu_backward", 0, 5 * one,
                [&](Exec& e) { ops::swiglu_backward(e, {.gate_up = gate_up, .dy = dy, .dgate_up = d_gate_up}); });
  // Beside the GEMMs: alone, and in one op.
  const Tensor x = bench.random({o.tokens, o.hidden}), up = bench.random({2 * o.ffn, o.hidden}),
               d_out = bench.random({o.tokens, o.hidden}), down = bench.random({o.hidden, o.ffn}),
               d_y = bench.empty({o.tokens, o.ffn});
  const double down_flops =
      2.0 * static_cast<double>(o.tokens) * static_cast<double>(o.hidden) * static_cast<double>(o.ffn);
  bench.measure("up", 2 * down_flops, 0, [&](Exec& e) {
    ops::matmul(e, {.a = x, .b = up, .c = d_gate_up, .transpose_b = ops::Transpose::yes});
  });
  bench.measure("up + swiglu", 2 * down_flops, 0,
                [&](Exec& e) { ops::matmul_swiglu(e, {.x = x, .w = up, .z = d_gate_up, .y = y}); });
  bench.measure("down, dgrad", down_flops, 0, [&](Exec& e) { ops::matmul(e, {.a = d_out, .b = down, .c = d_y}); });
  bench.measure("down, dgrad + swiglu'", down_flops, 0, [&](Exec& e) {
    ops::matmul_swiglu_backward(e, {.dy = d_out, .w = down, .z = gate_up, .dz = d_gate_up});
  });
  bench.print();
}

/// The cross entropy over a whole vocabulary, and the passes over a split one. Gradients replace the logits, so a run
/// starts from the output of the last one: other numbers, the same bytes.
void bench_loss(const OpsBench& o) {
  OpsRunner bench(o);
  bench.measure_roofs();
  Exec& ex = bench.ex();
  const Tensor logits = bench.random({o.tokens, o.vocab}), targets = ex.tensor({o.tokens}, DType::i32);
  const DType statistics = statistics_dtype(bench.dtype());
  const Tensor loss = ex.tensor({o.tokens}, statistics), sum = ex.tensor({1}, DType::f64),
               row_max = ex.tensor({o.tokens}, statistics), sums = ex.tensor({2, o.tokens}, statistics);
  const Tensor state = bench.on_device(StepState{.step = 1});
  ops::fill(ex, sums, 1);
  const double one = static_cast<double>(logits.bytes());
  bench.measure("cross_entropy with gradient", 0, 2 * one, [&](Exec& e) {
    ops::cross_entropy(e, {.logits = logits,
                           .targets = targets,
                           .step_state = state,
                           .loss = loss,
                           .loss_sum = sum,
                           .vocab_size = o.vocab});
  });
  bench.measure("cross_entropy without", 0, one, [&](Exec& e) {
    ops::cross_entropy(
        e,
        {.logits = logits, .targets = targets, .step_state = {}, .loss = loss, .loss_sum = sum, .vocab_size = o.vocab});
  });
  bench.measure("logits_max", 0, one, [&](Exec& e) { ops::logits_max(e, logits, row_max, 0, o.vocab); });
  bench.measure("logits_sum_exp", 0, 2 * one, [&](Exec& e) {
    ops::logits_sum_exp(
        e, {.logits = logits, .row_max = row_max, .targets = targets, .sums = sums, .vocab_size = o.vocab});
  });
  bench.measure("logits_backward", 0, 2 * one, [&](Exec& e) {
    ops::logits_backward(e, {.logits = logits, .sums = sums, .targets = targets, .step_state = state});
  });
  bench.print();
}

void bench_embedding(const OpsBench& o) {
  OpsRunner bench(o);
  bench.measure_roofs();
  Exec& ex = bench.ex();
  const Index batch = std::max<Index>(1, o.tokens / o.seq), tokens = batch * o.seq;
  std::vector<std::int32_t> host(static_cast<std::size_t>(tokens));
  const RandomSite site{.seed = 1};
  for (std::size_t i = 0; i < host.size(); ++i)
    host[i] = static_cast<std::int32_t>(site.word(i) % static_cast<std::uint32_t>(o.vocab));
  const Tensor ids = bench.on_device(host);
  std::ranges::sort(host);
  const Index num_ids = std::ranges::unique(host).begin() - host.begin();
  const Tensor table = bench.random({o.vocab, o.hidden}), position = bench.random({o.seq, o.hidden}),
               x = bench.random({tokens, o.hidden}), y = bench.empty({tokens, o.hidden}),
               table_grad = bench.gradient({o.vocab, o.hidden}), position_grad = bench.gradient({o.seq, o.hidden}),
               bias_grad = bench.gradient({o.hidden});
  const auto rows = [&](Index count, DType dtype) { return static_cast<double>(count * o.hidden * size_of(dtype)); };
  const double one = rows(tokens, bench.dtype());
  const DType sums = table_grad.dtype();
  bench.measure("embedding", 0, one + rows(num_ids, bench.dtype()), [&](Exec& e) {
    ops::embedding_forward(e, {.ids = ids, .table = table, .y = y, .first_id = 0, .vocab_size = o.vocab});
  });
  bench.measure("add_position", 0, 2 * one + rows(o.seq, bench.dtype()),
                [&](Exec& e) { ops::add_position(e, {.x = x, .position = position, .y = y, .dropout = {}}); });
  bench.measure("embedding_backward", 0, one + 2 * rows(num_ids, sums), [&](Exec& e) {
    ops::embedding_backward(e, {.ids = ids, .dy = x, .table_grad = table_grad, .first_id = 0});
  });
  bench.measure("position_backward", 0, one + 2 * rows(o.seq, sums),
                [&](Exec& e) { ops::position_backward(e, x, position_grad); });
  bench.measure("bias_backward", 0, one, [&](Exec& e) { ops::bias_backward(e, x, bias_grad); });
  const TensorSlice slice = TensorSlice::whole("values", {o.params});
  const Tensor values = ex.tensor({o.params}, sums);
  bench.measure("initialise", 0, static_cast<double>(values.bytes()), [&](Exec& e) {
    ops::initialise(e, {slice, Init::normal, 1}, values, 1);
  });
  bench.print();
}

void bench_adamw(const OpsBench& o) {
  OpsRunner bench(o);
  bench.measure_roofs();
  Exec& ex = bench.ex();
  const DType master = statistics_dtype(bench.dtype());
  const bool has_copy = bench.dtype() == DType::f16;
  const Tensor w = bench.random({o.params}, master), m = bench.random({o.params}, master),
               v = bench.random({o.params}, master), grad = bench.random({o.params}, master);
  const Tensor decays = ex.tensor({ceil_div(o.params, ops::kDecayGroup)}, DType::u8);
  MasterValues masters{.whole = w, .copy = has_copy ? bench.empty({o.params}) : Tensor()};
  if (bench.dtype() == DType::bf16) {
    masters = {.copy = bench.empty({o.params}),
               .low = ex.tensor({o.params, 2}, DType::u8),
               .carries = ex.tensor({ceil_div(o.params, MasterValues::kCarries)}, DType::u64)};
    ops::write_masters(ex, w, masters);
  }
  const Tensor verdict = bench.on_device(ops::StepVerdict{.apply = 1, .factor = 1, .learning_rate = 1e-6, .update = 3}),
               squares = ex.tensor({1, ops::square_blocks(ex.device(), o.params)}, DType::f64);
  ops::scale(ex, v, 0);
  const double n = static_cast<double>(o.params),
               moved = static_cast<double>(7 * size_of(master) + (has_copy ? bench.element_bytes() : 0));
  bench.measure("adamw", 0, n * moved, [&](Exec& e) {
    ops::adamw(e, {.masters = masters, .m = m, .v = v, .grad = grad, .decays = decays, .verdict = verdict});
  });
  bench.measure("sum_of_squares", 0, n * static_cast<double>(size_of(master)), [&](Exec& e) {
    ops::sum_of_squares(e, grad.reshaped({1, o.params}), squares);
  });
  bench.print();
}

struct Command {
  std::string_view name;
  const char* what;
  void (*run)(const OpsBench&);
  Index cpu_tokens = 2048;  ///< on a CPU, unless given
};
constexpr Command kCommands[] = {{"gemm",
                                  "The products of a model's layers. With --precision fp8: those in E4M3 with a scale "
                                  "for each block, beside bf16, and what quantising costs",
                                  bench_gemm, 256},
                                 {"attention", "Attention forward and backward", bench_attention},
                                 {"norm", "Layer and RMS norms, residual sums", bench_norm},
                                 {"llama", "Rotary embedding and SwiGLU", bench_llama},
                                 {"rows", "The ops that choose experts, and bring rows to them and back", bench_rows},
                                 {"elementwise", "GELU, sums, casts, dropout", bench_elementwise},
                                 {"loss", "Cross entropy, also over a split vocabulary", bench_loss},
                                 {"embedding", "Embeddings, sums over rows and first values", bench_embedding},
                                 {"adamw", "The optimizer's pass and the gradient norm", bench_adamw}};

}  // namespace

bool is_bench_of_ops(std::string_view name) {
  return name == "grouped" || name == "echo" ||
         std::ranges::find(kCommands, name, &Command::name) != std::end(kCommands);
}

void add_bench_ops(CLI::App& bench) {
  for (const Command& one : kCommands) {
    const auto o = std::make_shared<OpsBench>();
    CLI::App* command = bench.add_subcommand(std::string(one.name), one.what);
    add_device_options(*command, o->device, o->precision);
    const auto size = [&](const char* name, Index& value, const std::string& what,
                          Index max = std::numeric_limits<std::int32_t>::max()) {
      return command->add_option(name, value, what)->check(between(1, max))->capture_default_str();
    };
    const bool has_fewer = one.cpu_tokens < o->tokens;
    const std::string fewer = has_fewer ? str(" (default on a CPU: ", one.cpu_tokens, ")") : "";
    const CLI::Option* const tokens = size("--tokens", o->tokens, "Rows: tokens of a microbatch" + fewer);
    size("--hidden", o->hidden, "Hidden size");
    size("--heads", o->heads, "Attention heads");
    size("--seq", o->seq, "Sequence length");
    size("--vocab", o->vocab, "Vocabulary");
    size("--params", o->params, "Parameters of the optimizer's buffers", kMaxBytes);
    if (one.name == "gemm") {
      command->get_option("--precision")
          ->description("fp64, fp32, bf16, fp16 or fp8 (default: fp32 on the CPU, bf16 on a GPU)");
      const auto names = fp8_models();
      command
          ->add_option("--model", o->models,
                       "With --precision fp8: the layers of these models, at the tokens of their microbatches on one "
                       "GPU, instead of those of --hidden")
          ->delimiter(',')
          ->check(CLI::IsMember(std::vector<std::string>(names.begin(), names.end())));
      command
          ->add_option("--kernel", o->kernels,
                       "With --precision fp8, on a GPU: kernels to measure beside the one that a step would run "
                       "(default: library,own). 128 and 192 are forms of ours, of which own takes one")
          ->delimiter(',')
          ->check(CLI::IsMember(fp8_kernels()));
    }
    if (one.name == "llama") size("--ffn", o->ffn, "Width of an MLP");
    if (one.name == "rows") {
      size("--experts", o->experts, "Experts", ops::kMaxGroups);
      size("--top-k", o->top_k, "Experts of a token", ops::kMaxGroups);
    }
    add_dropout(*command, o->dropout, "Of attention, which our own kernel then computes on a GPU");
    add_repeat_options(*command, *o);
    command->callback([o, one, tokens] {
      o->has_tokens = tokens->count() > 0;
      if (!o->has_tokens && o->device == "cpu") o->tokens = one.cpu_tokens;
      one.run(*o);
    });
  }
}

}  // namespace megalith::apps
