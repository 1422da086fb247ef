#pragma once
#include <functional>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/nn/gpt_layer.h"
#include "megalith/nn/lm_head.h"
#include "megalith/nn/moe/moe_step.h"
#include "megalith/nn/param_specs.h"
#include "megalith/nn/vocab_parallel_embedding.h"
#include "megalith/ops/rope.h"
#include "megalith/runtime/step_state.h"

#include "tests/support/gathered.h"
#include "tests/support/random_fill.h"

namespace megalith::support {

/// Sizes of a small layer. 4 heads, so that tp may be 1, 2 or 4.
inline nn::GptLayerConfig small_block(double dropout = 0) {
  return {.hidden_size = 8, .num_heads = 4, .ffn_hidden_size = 12, .dropout = dropout, .attention_dropout = dropout};
}

/// Llama's parts in a small layer. 4 kv heads of 8, each 6 wide, so that tp may be 1, 2 or 4.
inline nn::GptLayerConfig small_llama_block(double dropout = 0) {
  return {.hidden_size = 8,
          .num_heads = 8,
          .ffn_hidden_size = 12,
          .num_kv_heads = 4,
          .head_dim = 6,
          .dropout = dropout,
          .attention_dropout = dropout,
          .norm = nn::NormKind::rms,
          .position = nn::PositionKind::rope,
          .activation = nn::Activation::swiglu,
          .biases = nn::Biases::none};
}

inline nn::TensorParallel whole_rows(const comm::Group& tp) { return {tp, nn::SequenceParallel::off, 1}; }

/// One microbatch of batch 2 with a step state in memory.
struct SmallMicrobatch {
  Index seq_len = 3;
  StepState state{.step = 3, .first_sample = 5, .loss_scale = 0.25};
  /// The table of rotations; undefined: heads are not rotated.
  Tensor rope_table = {};
  nn::MoeStep moe = {};
  nn::Microbatch get() {
    return {.batch = 2,
            .seq_len = seq_len,
            .step_state = Tensor(&state, {sizeof(state)}, DType::u8),
            .mode = nn::Mode::train,
            .moe = &moe,
            .rope_table = rope_table};
  }
  /// For heads of `config`, in memory of `ex`.
  void make_rope_table(Exec& ex, const nn::GptLayerConfig& config) {
    if (config.position != nn::PositionKind::rope) return;
    rope_table = ex.tensor({seq_len, 2, config.head_dim / 2}, DType::f64);
    ops::rope_table(ex, {.head_dim = config.head_dim}, rope_table);
  }
};

/// Parameters of one layer on one rank, filled with random values that do not depend on the grid.
struct LayerParams {
  explicit LayerParams(std::vector<ParamSpec> specs, DType dtype = DType::f64)
      : params(std::move(specs), {dtype, dtype}) {
    params.allocate(ledger);
    for (ParamBuffer& buffer : params.buffers()) fill_params(buffer);
  }
  MemoryLedger ledger{Device::cpu};
  ParamSet params;
};

/// Layers "`name`.0", "`name`.1", ... as a model has them, from number `first` on, with parameters in `params`.
struct GptLayers {
  static std::vector<ParamSpec> specs(const std::string& name, Index count, const nn::GptLayerConfig& config,
                                      const nn::LayerGroups& groups) {
    std::vector<ParamSpec> all;
    for (Index i = 0; i < count; ++i) {
      for (const nn::SublayerSpec& spec : nn::gpt_layer(str(name, ".", i), i, config))
        nn::declare(all, spec, {.hidden_size = config.hidden_size}, groups);
    }
    return all;
  }
  static nn::SublayerStack stack(const std::string& name, Index first, Index count, const nn::GptLayerConfig& config,
                                 const nn::LayerGroups& groups, ParamSet& params,
                                 nn::NormPlacement placement = nn::NormPlacement::pre) {
    std::vector<nn::SublayerStack::Entry> entries;
    for (Index i = 0; i < count; ++i) {
      for (const nn::SublayerSpec& spec : nn::gpt_layer(str(name, ".", i), first + i, config))
        entries.push_back(nn::make_entry(spec, {.seed = 17}, groups, params));
    }
    return {groups.tp, std::move(entries), {}, placement};
  }
};

inline Tensor random_tensor(Exec& ex, const Shape& shape, std::uint64_t stream, DType dtype = DType::f64) {
  const Tensor t = ex.tensor(shape, dtype);
  fill_random(t, stream);
  return t;
}

/// The scalar that finite differences look at: sum(y * dy).
inline double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (Index i = 0; i < a.numel(); ++i) sum += a.data<double>()[i] * b.data<double>()[i];
  return sum;
}

/// (f(x + h) - f(x - h)) / 2h for every element of x.
inline std::vector<double> numeric_gradient(const Tensor& x, const std::function<double()>& f, double h = 1e-5) {
  std::vector<double> gradient;
  for (double& value : x.span<double>()) {
    const double old = value;
    value = old + h;
    const double up = f();
    value = old - h;
    const double down = f();
    value = old;
    gradient.push_back((up - down) / (2 * h));
  }
  return gradient;
}

inline std::vector<double> values_of(const Tensor& t) {
  const std::span<double> s = t.span<double>();
  return {s.begin(), s.end()};
}

}  // namespace megalith::support
