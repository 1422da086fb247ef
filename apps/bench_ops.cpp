#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/config/run_plan.h"
#include "megalith/ops/adamw.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/embedding.h"
#include "megalith/ops/gemm_chooser.h"
#include "megalith/ops/init.h"
#include "megalith/ops/matmul.h"
#include "megalith/ops/norm.h"
#include "megalith/runtime/memory_plan.h"
#include "megalith/runtime/step_state.h"

#include "apps/bench.h"

namespace megalith::apps {
namespace {

struct OpsBench {
  std::string device = "cpu", precision, format = "text";
  Index tokens = 2048, hidden = 768, heads = 12, seq = 1024, vocab = 50304, params = Index{1} << 24;
  Index repeats = 20;
  double dropout = 0;
  bool deterministic = false;
};

/// Throws ConfigError for a name that is none, and for one that `device` does not compute in.
DType compute_dtype(const OpsBench& o, Device device) {
  const std::string precision = o.precision.empty() ? std::string(config::default_precision(device)) : o.precision;
  const std::optional<Policy> policy = config::policy_of(precision);
  if (!policy) throw ConfigError(str("--precision = ", precision, ": must be fp64, fp32, bf16 or fp16"));
  if (device == Device::cuda && policy->compute == DType::f64)
    throw ConfigError("--precision = fp64: is for --device cpu, to check with: a GPU computes in bf16, fp16 or fp32");
  return policy->compute;
}

/// One op's time and what it is measured by.
struct OpRow {
  std::string name;
  double seconds = 0;
  double flops = 0, bytes = 0;  ///< one of them
};

/// Runs ops on random data and keeps their times.
class OpsRunner {
 public:
  explicit OpsRunner(const OpsBench& options)
      : options_(options),
        device_(options.device == "cuda" ? Device::cuda : Device::cpu),
        dtype_(compute_dtype(options, device_)) {
    require_device(device_);
    device::use(device_, 0);
    ex_.emplace(device_);
    ex_->set_determinism(options.deterministic ? Determinism::required : Determinism::not_required);
  }

  Exec& ex() { return *ex_; }
  DType dtype() const { return dtype_; }
  Index element_bytes() const { return size_of(dtype_); }

  /// The sizes are the user's.
  static void require_fits(const Shape& shape, DType dtype) try {
    static_cast<void>(bytes_of(shape, dtype));
  } catch (const ShapeError&) {
    throw ConfigError(str("a tensor of shape ", shape, ": must take at most 2^48 bytes; choose smaller sizes"));
  }
  /// Normal numbers: constants run faster than what a model computes on.
  Tensor random(const Shape& shape) { return random(shape, dtype_); }
  Tensor random(const Shape& shape, DType dtype) {
    require_fits(shape, statistics_dtype(dtype));
    const TensorSlice slice = TensorSlice::whole(str("bench", count_++), {shape.numel()});
    const Tensor wide = ex_->tensor({shape.numel()}, statistics_dtype(dtype)), narrow = ex_->tensor(shape, dtype);
    ops::initialise(*ex_, {slice, Init::normal, 1}, wide, 1);
    ops::cast(*ex_, wide.reshaped(shape), narrow);
    return narrow;
  }
  Tensor empty(const Shape& shape) {
    require_fits(shape, dtype_);
    return ex_->tensor(shape, dtype_);
  }
  /// u8 [sizeof(T)]: a structure that ops read on the device.
  template <class T>
  Tensor on_device(const T& value) {
    const Tensor copy = ex_->tensor({Index{sizeof value}}, DType::u8);
    ex_->copy(copy.raw(), &value, sizeof value);
    ex_->synchronize();
    return copy;
  }
  Tensor gradient(const Shape& shape) { return random(shape, statistics_dtype(dtype_)); }

  /// The median time of `op`, whose scratch is planned as in a step. On a GPU each time is that of ten runs in a row,
  /// so that the host's part of a launch does not show.
  void measure(const std::string& name, double flops, double bytes, const std::function<void(Exec&)>& op) {
    Recording recording;
    Exec recorder(device_, recording);
    recorder.set_determinism(ex_->determinism());
    recording.begin_phase();
    op(recorder);
    const MemoryPlan plan = make_plan(recording);
    const Buffer scratch(plan.scratch_bytes, device_);
    const auto run = [&] {
      ex_->begin(plan.phases[0], nullptr, scratch.data());
      op(*ex_);
      ex_->end();
    };
    const int runs = device_ == Device::cuda ? 10 : 1;
    run();
    if (device_ == Device::cuda) {
      choose_gemms();
      run();
    }
    std::vector<double> times;
    for (Index i = 0; i < options_.repeats; ++i) {
      TimePoint begin(device_), end(device_);
      begin.record(ex_->stream());
      for (int j = 0; j < runs; ++j) run();
      end.record(ex_->stream());
      times.push_back(end.seconds_since(begin) / runs);
    }
    rows_.push_back({name, median(std::move(times)), flops, bytes});
  }

  /// The products met so far run by their fastest algorithms from here on, as in training.
  void choose_gemms() {
    ops::GemmChooser& chooser = ops::gemm_chooser(*ex_);
    const ops::GemmTable met = chooser.current();
    gemms_.platform = met.platform;
    const std::array<ops::KnownGemms, 1> chosen = {{{"this bench", gemms_}}};
    gemms_ = ops::choose_gemms(chooser, met, chosen, {}).table;
    chooser.use(gemms_);
  }

  /// What the device reaches: a large copy and a large square product.
  void measure_roofs() {
    const Index large = device_ == Device::cuda ? Index{1} << 30 : Index{1} << 27,
                edge = device_ == Device::cuda ? 8192 : 1024;
    const Tensor from = ex_->tensor({large}, DType::u8), to = ex_->tensor({large}, DType::u8);
    measure("roof: copy", 0, 2 * static_cast<double>(large), [&](Exec& e) { ops::copy(e, from, to); });
    const Tensor a = random({edge, edge}), b = random({edge, edge}), c = empty({edge, edge});
    const double side = static_cast<double>(edge);
    measure("roof: product", 2 * side * side * side, 0,
            [&](Exec& e) { ops::matmul(e, {.a = a, .b = b, .c = c, .transpose_b = ops::Transpose::yes}); });
    bytes_per_second_ = rows_[0].bytes / rows_[0].seconds;
    flops_per_second_ = rows_[1].flops / rows_[1].seconds;
    ex_->synchronize();
    ex_->release();
  }

  void print() const {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const OpRow& row : rows_) {
      const bool counts_flops = row.flops > 0;
      const double rate = (counts_flops ? row.flops : row.bytes) / row.seconds;
      const double share = rate / (counts_flops ? flops_per_second_ : bytes_per_second_);
      if (options_.format == "json") {
        out.push_back({{"name", row.name},
                       {"seconds", row.seconds},
                       {counts_flops ? "flops_per_second" : "bytes_per_second", rate},
                       {"share_of_roof", share}});
      } else {
        std::printf("%-44s %10.1f us %9.1f %s %5.1f %%\n", row.name.c_str(), 1e6 * row.seconds,
                    rate * (counts_flops ? 1e-12 : 1e-9), counts_flops ? "TFLOP/s" : "GB/s   ", 100 * share);
      }
    }
    if (options_.format == "json") std::printf("%s\n", out.dump(2).c_str());
  }

 private:
  OpsBench options_;
  Device device_;
  DType dtype_;
  std::optional<Exec> ex_;
  int count_ = 0;
  std::vector<OpRow> rows_;
  ops::GemmTable gemms_;
  double bytes_per_second_ = 1, flops_per_second_ = 1;
};

/// The products of a Transformer layer and of the head: forward, both gradients.
void bench_gemm(const OpsBench& o) {
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
  // Two products forward, five backward, over the half of the scores that causality leaves.
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
    ops::layer_norm_forward(e, {.x = x, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
  });
  bench.measure("residual_layer_norm", 0, 4 * one, [&](Exec& e) {
    ops::residual_layer_norm(e, {.x = x,
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
  ops::LayerNormBackward backward{.dy = dy,
                                  .x = x,
                                  .gamma = gamma,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .residual = residual,
                                  .dx = dx,
                                  .gamma_grad = gamma_grad,
                                  .beta_grad = beta_grad};
  const auto run_backward = [&](Exec& e) { ops::layer_norm_backward(e, backward); };
  bench.measure("layer_norm_backward + residual", 0, 4 * one, run_backward);
  backward.bias_grad = bench.gradient(row);
  bench.measure("layer_norm_backward + residual + sums", 0, 4 * one, run_backward);
  bench.measure("bias_dropout_residual", 0, 3 * one, [&](Exec& e) {
    ops::bias_dropout_residual(e, {.x = x, .bias = beta, .residual = residual, .out = y, .dropout = {}});
  });
  bench.print();
}

/// What no product and no norm takes along.
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

/// The cross entropy over a vocabulary that a rank holds whole, and the passes of one that is split. Gradients replace
/// the logits, so that a run begins with what the last one left: other numbers, the same bytes.
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
  const Tensor ids = ex.tensor({tokens}, DType::i32);
  ex.copy(ids.raw(), host.data(), ids.bytes());
  ex.synchronize();
  std::ranges::sort(host);
  const Index met = std::ranges::unique(host).begin() - host.begin();  // ids
  const Tensor table = bench.random({o.vocab, o.hidden}), position = bench.random({o.seq, o.hidden}),
               x = bench.random({tokens, o.hidden}), y = bench.empty({tokens, o.hidden}),
               table_grad = bench.gradient({o.vocab, o.hidden}), position_grad = bench.gradient({o.seq, o.hidden}),
               bias_grad = bench.gradient({o.hidden});
  const auto rows = [&](Index count, DType dtype) { return static_cast<double>(count * o.hidden * size_of(dtype)); };
  const double one = rows(tokens, bench.dtype());
  const DType sums = table_grad.dtype();
  bench.measure("embedding", 0, one + rows(met, bench.dtype()), [&](Exec& e) {
    ops::embedding_forward(e, {.ids = ids, .table = table, .y = y, .first_id = 0, .vocab_size = o.vocab});
  });
  bench.measure("add_position", 0, 2 * one + rows(o.seq, bench.dtype()),
                [&](Exec& e) { ops::add_position(e, {.x = x, .position = position, .y = y, .dropout = {}}); });
  bench.measure("embedding_backward", 0, one + 2 * rows(met, sums), [&](Exec& e) {
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
  const bool has_copy = bench.dtype() != master;
  const Tensor w = bench.random({o.params}, master), m = bench.random({o.params}, master),
               v = bench.random({o.params}, master), grad = bench.random({o.params}, master);
  const Tensor copy = has_copy ? bench.empty({o.params}) : Tensor(),
               decays = ex.tensor({ceil_div(o.params, ops::kDecayGroup)}, DType::u8);
  const Tensor verdict = bench.on_device(ops::StepVerdict{.apply = 1, .factor = 1, .learning_rate = 1e-6, .update = 3}),
               squares = ex.tensor({1, ops::square_blocks(ex.device(), o.params)}, DType::f64);
  ops::scale(ex, v, 0);
  const double n = static_cast<double>(o.params),
               moved = static_cast<double>(7 * size_of(master) + (has_copy ? bench.element_bytes() : 0));
  bench.measure("adamw", 0, n * moved, [&](Exec& e) {
    ops::adamw(e, {.value = w, .m = m, .v = v, .copy = copy, .grad = grad, .decays = decays, .verdict = verdict});
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
};
constexpr Command kCommands[] = {{"gemm", "The products of a model's layers", bench_gemm},
                                 {"attention", "Attention forward and backward", bench_attention},
                                 {"norm", "Layer norms and residual sums", bench_norm},
                                 {"elementwise", "GELU, sums, casts, dropout", bench_elementwise},
                                 {"loss", "Cross entropy, also over a split vocabulary", bench_loss},
                                 {"embedding", "Embeddings, sums over rows and first values", bench_embedding},
                                 {"adamw", "The optimizer's pass and the gradient norm", bench_adamw}};

}  // namespace

bool is_bench_of_ops(std::string_view name) {
  return std::ranges::find(kCommands, name, &Command::name) != std::end(kCommands);
}

void add_bench_ops(CLI::App& bench) {
  for (const Command& one : kCommands) {
    const auto o = std::make_shared<OpsBench>();
    CLI::App* command = bench.add_subcommand(std::string(one.name), one.what);
    command->add_option("--device", o->device, "cpu or cuda")
        ->check(CLI::IsMember({"cpu", "cuda"}))
        ->capture_default_str();
    command->add_option("--precision", o->precision,
                        "fp64, fp32, bf16 or fp16 (default: fp32 on the CPU, bf16 on a GPU)");
    const auto size = [&](const char* name, Index& value, const char* what,
                          Index most = std::numeric_limits<std::int32_t>::max()) {
      command->add_option(name, value, what)->check(between(1, most))->capture_default_str();
    };
    size("--tokens", o->tokens, "Rows: tokens of a microbatch");
    size("--hidden", o->hidden, "Hidden size");
    size("--heads", o->heads, "Attention heads");
    size("--seq", o->seq, "Sequence length");
    size("--vocab", o->vocab, "Vocabulary");
    size("--params", o->params, "Parameters of the optimizer's buffers", kMaxBytes);
    size("--repeats", o->repeats, "Runs, of which the median counts");
    add_dropout(*command, o->dropout, "Of attention, which our own kernel then computes on a GPU");
    command->add_flag("--deterministic", o->deterministic, "The same bits every time");
    command->add_option("--format", o->format, "text or json")->check(CLI::IsMember({"text", "json"}));
    command->callback([o, run = one.run] { run(*o); });
  }
}

}  // namespace megalith::apps
