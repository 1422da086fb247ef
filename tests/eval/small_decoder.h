#pragma once
#include <vector>

#include "megalith/comm/threads/thread_world.h"
#include "megalith/eval/decoder.h"
#include "megalith/eval/generate.h"
#include "megalith/ops/init.h"

#include "tests/eval/whole_model.h"

// Small models of random values, with a key/value cache on any grid and without one.
namespace megalith::eval {

using Ids = std::vector<std::int32_t>;

/// A model whose logits differ enough for texts to differ.
inline model::ModelConfig small(model::ModelConfig config, Index seq_len) {
  config.num_layers = 3;
  config.hidden_size = 16;
  config.num_heads = 4;
  config.ffn_hidden_size = 24;
  config.seq_len = seq_len;
  config.vocab_size = 61;
  config.padded_vocab_size = 64;
  return config;
}
/// GPT-2; Llama with 2 kv heads; Llama with a norm of q and k. The second is tied: such a model of random weights likes
/// to repeat a token, the others do not.
inline std::vector<model::ModelConfig> kinds(Index seq_len) {
  model::ModelConfig gpt2, post_norm, grouped = model::llama_defaults(), normed = model::llama_defaults();
  post_norm.norm_placement = nn::NormPlacement::post;
  post_norm.activation = nn::Activation::gelu_erf;
  post_norm.token_types = 2;
  grouped.num_kv_heads = normed.num_kv_heads = 2;
  normed.qk_norm = nn::QkNorm::head;
  gpt2.tying = normed.tying = model::Tying::untied;
  grouped.tying = model::Tying::tied;
  return {small(gpt2, seq_len), small(post_norm, seq_len), small(grouped, seq_len), small(normed, seq_len)};
}

/// The same values on every grid and in every dtype. Biases are small: that of the last norm favours the same id
/// everywhere.
inline void random_values(const TensorSlice& slice, const Tensor& values) {
  Exec host;
  ops::initialise(host, {slice, Init::normal, slice.name.ends_with(".bias") ? 0.02 : 0.4}, values, 7);
}

struct Setting {
  DType dtype = DType::f64;
  Index slots = 1;
  Index capacity = 0;  ///< 0: seq_len
  int tp = 1, pp = 1, ep = 1, etp = 1, copies = 1;
  Steps steps = Steps::eager;
  std::vector<Index> lengths = {};
  int ranks() const { return tp * pp * copies; }
  /// The sizes of a grid for the model.
  grid::ResolvedSizes grid(const model::ModelConfig& model) const {
    grid::ParallelSizes sizes{.world_size = ranks(), .tp = tp, .pp = pp, .ep = ep};
    if (model.moe.has_experts()) sizes.etp = etp;
    return grid::resolve(sizes);
  }
};

/// use(decoder, rank) on every rank.
template <class Use>
void with_decoder(const model::ModelConfig& config, const Setting& setting, Use&& use) {
  comm::run_ranks(setting.ranks(), [&](comm::World& world) {
    const comm::Mesh mesh = comm::make_mesh(world, setting.grid(config));
    Decoder decoder({.model = config,
                     .dtype = setting.dtype,
                     .slots = setting.slots,
                     .capacity = setting.capacity == 0 ? config.seq_len : setting.capacity,
                     .steps = setting.steps,
                     .lengths = setting.lengths},
                    world, mesh);
    decoder.allocate();
    decoder.fill_params(DType::f32, random_values);
    use(decoder, world.rank());
  });
}

/// use(model): the same values in a model that has no cache.
template <class Use>
void with_whole_model(const model::ModelConfig& config, DType dtype, Use&& use) {
  comm::run_ranks(1, [&](comm::World& world) {
    WholeModel model(config, comm::make_mesh(world, grid::resolve({})), dtype);
    model.fill_params([](const TensorSlice& slice, const Tensor& values) {
      const Buffer memory(bytes_of(values.shape(), DType::f32));
      const Tensor stored = memory.view(values.shape(), DType::f32);
      random_values(slice, stored);
      Exec host;
      ops::cast(host, stored, values);
    });
    use(model);
  });
}

}  // namespace megalith::eval
