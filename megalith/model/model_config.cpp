#include "megalith/model/model_config.h"

#include <algorithm>
#include <array>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::model {
namespace {

constexpr std::string_view kGpt2 = "Radford et al. 2019";
constexpr std::string_view kTable1 = "arXiv:1909.08053, table 1";
constexpr std::string_view kTable2 = "arXiv:1909.08053, table 2";

constexpr std::array<Preset, 11> kPresets = {{
    {"gpt2-124m", 12, 768, 12, 50257, 0, 1024, kGpt2},
    {"gpt2-355m", 24, 1024, 16, 50257, 0, 1024, kGpt2},
    {"gpt2-774m", 36, 1280, 20, 50257, 0, 1024, kGpt2},
    {"gpt2-1558m", 48, 1600, 25, 50257, 0, 1024, kGpt2},
    {"gpt2-1.2b", 40, 1536, 16, 50257, 51200, 1024, kTable1},
    {"gpt2-2.5b", 54, 1920, 20, 50257, 51200, 1024, kTable1},
    {"gpt2-4.2b", 64, 2304, 24, 50257, 51200, 1024, kTable1},
    {"gpt2-8.3b", 72, 3072, 32, 50257, 51200, 1024, kTable1},
    {"megatron-355m", 24, 1024, 16, 50257, 51200, 1024, kTable2},
    {"megatron-2.5b", 54, 1920, 20, 50257, 51200, 1024, kTable2},
    {"megatron-8.3b", 72, 3072, 24, 50257, 51200, 1024, kTable2},
}};

}  // namespace

std::span<const Preset> presets() { return kPresets; }

const Preset& preset(std::string_view name) {
  const auto found = std::find_if(kPresets.begin(), kPresets.end(), [&](const Preset& p) { return p.name == name; });
  if (found != kPresets.end()) return *found;
  std::vector<std::string_view> names;
  std::string list;
  for (const Preset& p : kPresets) {
    names.push_back(p.name);
    list += (list.empty() ? "" : ", ") + std::string(p.name);
  }
  const std::string_view near = nearest(name, names);
  throw ConfigError(str("model.preset = ", name, ": no such preset",
                        near.empty() ? "" : str("; did you mean ", near, "?"), " (there are ", list, ")"));
}

ops::RopeFrequencies ModelConfig::rope_frequencies() const {
  return {.head_dim = head_width(),
          .theta = rope_theta,
          .scaling = rope_scaling,
          .factor = rope_factor,
          .low_freq_factor = rope_low_freq_factor,
          .high_freq_factor = rope_high_freq_factor,
          .original_max_position = static_cast<double>(rope_original_seq_len)};
}

std::vector<Index> ModelConfig::moe_layers() const {
  std::vector<Index> layers;
  for (Index layer = 0; layer < num_layers; ++layer) {
    if (moe.is_moe_layer(layer)) layers.push_back(layer);
  }
  return layers;
}

ModelConfig llama_defaults() {
  ModelConfig m;
  m.family = "llama";
  m.dropout = m.attention_dropout = m.embedding_dropout = 0;
  m.norm = nn::NormKind::rms;
  m.position = nn::PositionKind::rope;
  m.activation = nn::Activation::swiglu;
  m.biases = nn::Biases::none;
  m.tying = Tying::untied;
  return m;
}

Index llama_ffn_hidden_size(Index hidden_size) { return round_up(8 * hidden_size / 3, 256); }

Index padded_vocab_size(Index vocab_size, int tp) { return round_up(vocab_size, Index{128} * tp); }

void check(const ModelConfig& m, int tp, Problems& out) {
  if (m.head_dim == 0) {
    out.require(m.hidden_size % m.num_heads == 0, "model.num_heads", m.num_heads,
                str("must divide model.hidden_size = ", m.hidden_size, ", or model.head_dim must be given"));
  }
  out.require(m.num_heads % m.kv_heads() == 0, "model.num_kv_heads", m.kv_heads(),
              str("must divide model.num_heads = ", m.num_heads));
  out.require(!m.has_rope() || m.head_width() % 2 == 0, "model.head_dim", m.head_width(),
              "must be even with model.position = rope, which turns pairs");
  if (m.rope_scaling == ops::RopeScaling::llama3) {
    out.require(m.rope_low_freq_factor < m.rope_high_freq_factor, "model.rope_low_freq_factor", m.rope_low_freq_factor,
                str("must be below model.rope_high_freq_factor = ", m.rope_high_freq_factor));
  }
  out.require(m.padded_vocab_size >= m.vocab_size, "model.padded_vocab_size", m.padded_vocab_size,
              str("must be at least model.vocab_size = ", m.vocab_size));
  if (tp >= 1) {
    out.require(m.num_heads % tp == 0, "parallel.tp", tp,
                str("must divide model.num_heads = ", m.num_heads, " (E_HEADS_NOT_DIVISIBLE)"));
    out.require(m.kv_heads() % tp == 0, "parallel.tp", tp,
                str("must divide model.num_kv_heads = ", m.kv_heads(), " (E_HEADS_NOT_DIVISIBLE)"));
    out.require(m.ffn_hidden_size % tp == 0, "parallel.tp", tp,
                str("must divide model.ffn_hidden_size = ", m.ffn_hidden_size, " (E_DIM_NOT_DIVISIBLE)"));
    out.require(m.padded_vocab_size % tp == 0, "model.padded_vocab_size", m.padded_vocab_size,
                str("must be divisible by parallel.tp = ", tp, "; the smallest that fits is ",
                    padded_vocab_size(m.vocab_size, tp)));
  }
}

}  // namespace megalith::model
