#include "megalith/model/model_config.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/nearest_size.h"
#include "megalith/base/text.h"

namespace megalith::model {
namespace {

constexpr std::string_view kGpt2 = "Radford et al. 2019";
constexpr std::string_view kTable1 = "arXiv:1909.08053, table 1";
constexpr std::string_view kTable2 = "arXiv:1909.08053, table 2";
constexpr std::string_view kTable4 = "arXiv:1909.08053, table 4";

/// Layers, hidden size, heads, padded vocabulary.
Preset gpt2(std::string_view name, Index layers, Index hidden, Index heads, Index padded, std::string_view source) {
  return {name,
          source,
          {.num_layers = layers,
           .hidden_size = hidden,
           .num_heads = heads,
           .ffn_hidden_size = 4 * hidden,
           .seq_len = 1024,
           .vocab_size = 50257,
           .padded_vocab_size = padded}};
}

/// BERT with norms before sublayers: layers, hidden size, heads, padded vocabulary.
Preset bert(std::string_view name, Index layers, Index hidden, Index heads, Index padded, std::string_view source) {
  ModelConfig m = bert_defaults();
  m.num_layers = layers, m.hidden_size = hidden, m.num_heads = heads, m.ffn_hidden_size = 4 * hidden;
  m.seq_len = 512, m.vocab_size = 30'522, m.padded_vocab_size = padded;
  return {name, source, m};
}

/// As it was first published.
Preset first_bert(std::string_view name, Index layers, Index hidden, Index heads) {
  Preset preset = bert(name, layers, hidden, heads, 0, "Devlin et al. 2019, arXiv:1810.04805");
  preset.model.norm_placement = nn::NormPlacement::post;
  preset.model.activation = nn::Activation::gelu_erf;
  preset.model.norm_eps = 1e-12;
  return preset;
}

Preset llama_1b() {
  ModelConfig m = llama_defaults();
  m.num_layers = 16, m.hidden_size = 2048, m.num_heads = 32, m.num_kv_heads = 8, m.head_dim = 64;
  m.ffn_hidden_size = 8192, m.seq_len = 131'072, m.vocab_size = 128'256;
  m.rope_theta = 5e5, m.rope_scaling = ops::RopeScaling::llama3, m.rope_factor = 32;
  m.tying = Tying::tied;
  return {"llama-3.2-1b", "huggingface.co/meta-llama/Llama-3.2-1B", m};
}

Preset olmoe() {
  ModelConfig m = llama_defaults();
  m.num_layers = 16, m.hidden_size = 2048, m.num_heads = 16, m.ffn_hidden_size = 1024;
  m.seq_len = 4096, m.vocab_size = 50'304;
  m.qk_norm = nn::QkNorm::all;
  m.moe.num_experts = 64, m.moe.top_k = 8, m.moe.ffn_hidden_size = 1024, m.moe.aux_loss = 0.01;
  m.moe.z_loss = 0.001;  // in the paper; config.json has no key for it
  return {"olmoe-1b-7b", "Muennighoff et al. 2024, arXiv:2409.02060; huggingface.co/allenai/OLMoE-1B-7B-0924", m};
}

Preset mixtral() {
  ModelConfig m = llama_defaults();
  m.num_layers = 32, m.hidden_size = 4096, m.num_heads = 32, m.num_kv_heads = 8, m.ffn_hidden_size = 14'336;
  m.seq_len = 32'768, m.vocab_size = 32'000, m.rope_theta = 1e6;
  m.moe.num_experts = 8, m.moe.top_k = 2, m.moe.ffn_hidden_size = 14'336, m.moe.aux_loss = 0.02;
  m.moe.score_before_top_k = false;
  return {"mixtral-8x7b", "Jiang et al. 2024, arXiv:2401.04088; huggingface.co/mistralai/Mixtral-8x7B-v0.1", m};
}

Preset qwen3() {
  ModelConfig m = llama_defaults();
  m.num_layers = 48, m.hidden_size = 2048, m.num_heads = 32, m.num_kv_heads = 4, m.head_dim = 128;
  m.ffn_hidden_size = 6144, m.seq_len = 40'960, m.vocab_size = 151'936, m.rope_theta = 1e6, m.norm_eps = 1e-6;
  m.qk_norm = nn::QkNorm::head;
  m.moe.num_experts = 128, m.moe.top_k = 8, m.moe.ffn_hidden_size = 768, m.moe.aux_loss = 0.001;
  m.moe.normalize_top_k = true;
  return {"qwen3-30b-a3b", "Yang et al. 2025, arXiv:2505.09388; huggingface.co/Qwen/Qwen3-30B-A3B", m};
}

/// ""; or what to add to a rule where a size fits it.
std::string nearest_text(Index size) { return size == 0 ? "" : str("; the nearest is ", size); }

void check_heads(const ModelConfig& m, Index tp, Problems& out) {
  const Index hidden = m.hidden_size, heads = m.num_heads, kv_heads = m.kv_heads();
  const bool has_width = m.head_dim != 0, divides = has_width || hidden % heads == 0;
  const auto fits = [&](Index count) {
    const bool is_even = !m.has_rope() || hidden / count % 2 == 0;
    return hidden % count == 0 && is_even && (m.num_kv_heads == 0 || count % m.num_kv_heads == 0);
  };
  if (!divides)
    out.add("model.num_heads", heads,
            str("must divide model.hidden_size = ", hidden, ", or model.head_dim must be given",
                nearest_text(nearest_size(heads, hidden, fits))));
  if (heads % kv_heads != 0) {
    const Index slices = tp >= 1 && heads % tp == 0 ? tp : 1;  // each has whole groups of heads
    out.add("model.num_kv_heads", kv_heads,
            str("must divide model.num_heads = ", heads,
                nearest_text(slices * nearest_divisor(heads / slices, kv_heads / slices))));
  }
  if (!m.has_rope() || !divides || m.head_width() % 2 == 0) return;
  if (has_width)
    out.add("model.head_dim", m.head_dim,
            str("must be even with model.position = rope, which turns pairs", nearest_text(m.head_dim + 1)));
  else
    out.add(
        "model.num_heads", heads,
        str("makes heads model.hidden_size / ", heads, " = ", m.head_width(),
            " wide, which must be even with model.position = rope, which turns pairs; give model.head_dim, or another "
            "number of heads",
            nearest_text(nearest_size(heads, hidden, fits))));
}

/// What tensor-parallel ranks divide. A number of ranks that is refused is refused with the nearest that all sizes
/// take.
void check_slices(const ModelConfig& m, Index tp, Problems& out) {
  const Index dense_ffn = m.num_moe_layers() < m.num_layers ? m.ffn_hidden_size : 0;  // 0: no layer has it
  const Index all = std::gcd(std::gcd(m.num_heads, m.kv_heads()), std::gcd(dense_ffn, m.moe.shared_ffn_hidden_size));
  const auto require = [&](const char* key, Index size) {
    if (size % tp != 0)
      out.add("parallel.tp", tp, str("must divide ", key, " = ", size, nearest_text(nearest_divisor(all, tp))));
  };
  require("model.num_heads", m.num_heads);
  if (m.kv_heads() != m.num_heads) require("model.num_kv_heads", m.kv_heads());
  require("model.ffn_hidden_size", dense_ffn);
  require("moe.shared_ffn_hidden_size", m.moe.shared_ffn_hidden_size);
  out.require(m.padded_vocab_size % tp == 0, "model.padded_vocab_size", m.padded_vocab_size,
              str("must be divisible by parallel.tp = ", tp, "; the smallest that fits is ",
                  padded_vocab_size(m.vocab_size, static_cast<int>(tp))));
}

}  // namespace

std::span<const Preset> presets() {
  static const std::array<Preset, 21> kPresets = {gpt2("gpt2-124m", 12, 768, 12, 0, kGpt2),
                                                  gpt2("gpt2-355m", 24, 1024, 16, 0, kGpt2),
                                                  gpt2("gpt2-774m", 36, 1280, 20, 0, kGpt2),
                                                  gpt2("gpt2-1558m", 48, 1600, 25, 0, kGpt2),
                                                  gpt2("gpt2-1.2b", 40, 1536, 16, 51200, kTable1),
                                                  gpt2("gpt2-2.5b", 54, 1920, 20, 51200, kTable1),
                                                  gpt2("gpt2-4.2b", 64, 2304, 24, 51200, kTable1),
                                                  gpt2("gpt2-8.3b", 72, 3072, 32, 51200, kTable1),
                                                  gpt2("megatron-355m", 24, 1024, 16, 51200, kTable2),
                                                  gpt2("megatron-2.5b", 54, 1920, 20, 51200, kTable2),
                                                  gpt2("megatron-8.3b", 72, 3072, 24, 51200, kTable2),
                                                  bert("bert-336m", 24, 1024, 16, 0, kTable4),
                                                  bert("bert-752m", 36, 1280, 20, 30'720, "arXiv:1909.08053, figure 7"),
                                                  bert("bert-1.3b", 24, 2048, 32, 0, kTable4),
                                                  bert("bert-3.9b", 48, 2560, 40, 0, kTable4),
                                                  first_bert("bert-base", 12, 768, 12),
                                                  first_bert("bert-large", 24, 1024, 16),
                                                  llama_1b(),
                                                  olmoe(),
                                                  mixtral(),
                                                  qwen3()};
  return kPresets;
}

const Preset& preset(std::string_view name) {
  const auto found = std::ranges::find(presets(), name, &Preset::name);
  if (found != presets().end()) return *found;
  std::vector<std::string_view> names;
  std::string list;
  for (const Preset& p : presets()) {
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

ModelConfig bert_defaults() {
  ModelConfig m;
  m.family = "bert";
  m.token_types = 2;
  m.lengths = ops::SampleLengths::given;
  return m;
}

ModelConfig family_defaults(std::string_view family) {
  if (family == "llama") return llama_defaults();
  return family == "bert" ? bert_defaults() : ModelConfig{};
}

Index default_ffn_hidden_size(std::string_view family, Index hidden_size) {
  return family == "llama" ? round_up(8 * hidden_size / 3, 256) : 4 * hidden_size;
}

Index padded_vocab_size(Index vocab_size, int tp) { return round_up(vocab_size, Index{128} * tp); }

namespace {

/// What family = "bert" allows.
void check_bert(const ModelConfig& m, Problems& out) {
  constexpr Index kMinSeqLen = 8;
  out.require(!m.moe.has_experts(), "model.family", "bert", "has no experts; leave out section [moe]");
  out.require(m.seq_len >= kMinSeqLen, "model.seq_len", m.seq_len,
              str("must be at least ", kMinSeqLen, " with model.family = bert: [CLS] A [SEP] B [SEP]"));
  out.require(m.activation != nn::Activation::swiglu, "model.activation", "swiglu",
              "must be gelu or gelu_erf with model.family = bert, whose head has it too");
  const Index types = m.bert.is_pair() ? 2 : 0;
  out.require(m.token_types >= types, "model.token_types", m.token_types,
              str("must be at least 2 with model.family = bert: one for each segment",
                  m.task ? "" : "; or set bert.order = \"none\""));
}

}  // namespace

void check(const ModelConfig& m, int tp, Problems& out) {
  check_heads(m, tp, out);
  if (m.is_bert()) check_bert(m, out);
  if (m.num_positions != 0) {
    out.require(!m.has_rope(), "model.num_positions", m.num_positions,
                "is for model.position = learned: rotations have no table");
    out.require(m.num_positions >= m.seq_len, "model.num_positions", m.num_positions,
                str("must be at least model.seq_len = ", m.seq_len));
  }
  out.require(!m.is_post_norm() || !m.moe.has_experts(), "model.norm_placement", "post",
              "layers with experts have their norms before; use pre, or leave out section [moe]");
  out.require(m.activation != nn::Activation::gelu_erf || !m.moe.has_experts(), "model.activation", "gelu_erf",
              "experts have gelu or swiglu; use one of them, or leave out section [moe]");
  if (m.rope_scaling == ops::RopeScaling::llama3) {
    out.require(m.rope_low_freq_factor < m.rope_high_freq_factor, "model.rope_low_freq_factor", m.rope_low_freq_factor,
                str("must be below model.rope_high_freq_factor = ", m.rope_high_freq_factor));
  }
  out.require(m.padded_vocab_size >= m.vocab_size, "model.padded_vocab_size", m.padded_vocab_size,
              str("must be at least model.vocab_size = ", m.vocab_size));
  if (tp >= 1) check_slices(m, tp, out);
}

}  // namespace megalith::model
