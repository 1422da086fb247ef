#include "megalith/convert/hf_blocks.h"

#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"

namespace megalith::convert {
namespace {

constexpr std::string_view kFullAttention = "full_attention";

void read_llama3(const HfConfig& config, const HfConfig& rope, model::ModelConfig& m) {
  m.rope_low_freq_factor = rope.positive("low_freq_factor");
  m.rope_high_freq_factor = rope.positive("high_freq_factor");
  if (m.rope_low_freq_factor >= m.rope_high_freq_factor) rope.fail("low_freq_factor", "must be below high_freq_factor");
  constexpr const char* kOriginal = "original_max_position_embeddings";
  m.rope_original_seq_len = config.size_or(kOriginal, rope.size_or(kOriginal, m.seq_len));
}

void read_scaling(const HfConfig& config, const HfConfig& rope, model::ModelConfig& m) {
  const char* const type_key = rope.has("rope_type") ? "rope_type" : "type";  // "type": before 4.43
  const std::string type = rope.text_or(type_key, "default");
  if (type == "linear")
    m.rope_scaling = ops::RopeScaling::linear;
  else if (type == "llama3")
    m.rope_scaling = ops::RopeScaling::llama3;
  else if (type != "default")
    rope.fail(type_key, "must be default, linear or llama3: other scalings are not built yet");
  static constexpr std::array<std::string_view, 8> kKeys = {"rope_type",
                                                            "type",
                                                            "rope_theta",
                                                            "factor",
                                                            "low_freq_factor",
                                                            "high_freq_factor",
                                                            "partial_rotary_factor",
                                                            "original_max_position_embeddings"};
  rope.expect_only(kKeys, "this key is not known here, and might change rotations");
  rope.expect_or_null("partial_rotary_factor", 1, "must be 1: rotations of a part of a head are not built yet");
  if (m.rope_scaling == ops::RopeScaling::none) return;
  m.rope_factor = rope.positive("factor");
  if (m.rope_factor < 1) rope.fail("factor", "must be at least 1");
  if (m.rope_scaling == ops::RopeScaling::llama3) read_llama3(config, rope, m);
}

void read_rope(const HfConfig& config, double default_theta, model::ModelConfig& m) {
  m.position = nn::PositionKind::rope;
  m.rope_theta = config.positive_or("rope_theta", default_theta);
  config.expect_or_null("partial_rotary_factor", 1, "must be 1: rotations of a part of a head are not built yet");
  const bool older = config.has("rope_scaling"), newer = config.has("rope_parameters");
  if (older && newer && !config.object("rope_scaling").equals(config.object("rope_parameters")))
    config.fail("rope_scaling", "must not differ from rope_parameters; remove it");
  if (!older && !newer) return;
  const char* const key = newer ? "rope_parameters" : "rope_scaling";
  const HfConfig rope = config.object(key);
  if (rope.has("rope_theta")) {
    m.rope_theta = rope.positive("rope_theta");
    if (config.positive_or("rope_theta", m.rope_theta) != m.rope_theta)
      config.fail("rope_theta", str("must not differ from ", key, ".rope_theta; remove it"));
  }
  read_scaling(config, rope, m);
}

void read_heads(const HfConfig& config, const BlockDefaults& defaults, model::ModelConfig& m) {
  constexpr const char* kKvHeads = "num_key_value_heads";
  m.num_heads = config.size("num_attention_heads");
  m.num_kv_heads = defaults.kv_heads_are_heads ? config.size_or(kKvHeads, m.num_heads) : config.size(kKvHeads);
  if (m.num_heads % m.num_kv_heads != 0) config.fail(kKvHeads, str("must divide num_attention_heads = ", m.num_heads));
  if (!config.has("head_dim") && m.hidden_size % m.num_heads != 0)
    config.fail("num_attention_heads", str("must divide hidden_size = ", m.hidden_size, " where head_dim is missing"));
  m.head_dim = config.size_or("head_dim", m.hidden_size / m.num_heads);
  if (m.head_dim % 2 != 0) config.fail("head_dim", str(m.head_dim, " is odd; rotations turn pairs"));
}

void refuse_other_attention(const HfConfig& config, bool uses_window) {
  config.expect("clip_qkv", nullptr, "must be null: clipped q, k and v are not built yet");
  if (config.flag_or("use_sliding_window", uses_window))
    config.expect("sliding_window", nullptr, "must be null: attention to a window is not built yet");
  for (const std::string& type : config.texts("layer_types")) {
    if (type != kFullAttention) config.fail("layer_types", "must be full_attention: other kinds are not built yet");
  }
}

}  // namespace

model::ModelConfig read_blocks(const HfConfig& config, const BlockDefaults& defaults) {
  config.expect("hidden_act", "silu", "must be silu: other activations are not built yet");
  refuse_other_attention(config, defaults.uses_window);
  model::ModelConfig m = model::llama_defaults();
  m.num_layers = config.size("num_hidden_layers", model::kMaxLayers);
  m.hidden_size = config.size("hidden_size");
  read_heads(config, defaults, m);
  m.ffn_hidden_size = config.size("intermediate_size");
  m.seq_len = config.size_or("max_position_embeddings", defaults.seq_len);
  m.vocab_size = config.size("vocab_size");
  m.attention_dropout = config.has("attention_dropout") ? config.probability_or("attention_dropout", 0) : 0;
  m.norm_eps = config.positive_or("rms_norm_eps", defaults.norm_eps);
  m.tying = config.flag_or("tie_word_embeddings", false) ? model::Tying::tied : model::Tying::untied;
  read_rope(config, defaults.rope_theta, m);
  return m;
}

nlohmann::ordered_json write_blocks(const model::ModelConfig& m) {
  nlohmann::ordered_json scaling;  // null
  if (m.rope_scaling == ops::RopeScaling::linear) scaling = {{"rope_type", "linear"}, {"factor", m.rope_factor}};
  if (m.rope_scaling == ops::RopeScaling::llama3) {
    scaling = {{"rope_type", "llama3"},
               {"factor", m.rope_factor},
               {"low_freq_factor", m.rope_low_freq_factor},
               {"high_freq_factor", m.rope_high_freq_factor},
               {"original_max_position_embeddings", m.rope_original_seq_len}};
  }
  return {{"hidden_act", "silu"},
          {"vocab_size", m.vocab_size},
          {"max_position_embeddings", m.seq_len},
          {"hidden_size", m.hidden_size},
          {"intermediate_size", m.ffn_hidden_size},
          {"num_hidden_layers", m.num_layers},
          {"num_attention_heads", m.num_heads},
          {"num_key_value_heads", m.kv_heads()},
          {"head_dim", m.head_width()},
          {"rms_norm_eps", m.norm_eps},
          {"rope_theta", m.rope_theta},
          {"rope_scaling", scaling},
          {"attention_dropout", m.attention_dropout},
          {"initializer_range", 0.02},
          {"tie_word_embeddings", m.tying == model::Tying::tied}};
}

std::string blocks_misfit(const model::ModelConfig& m) {
  return first_misfit({{m.norm == nn::NormKind::rms, "model.norm = rms"},
                       {!m.is_post_norm(), "model.norm_placement = pre"},
                       {m.token_types == 0, "model.token_types = 0"},
                       {m.has_rope(), "model.position = rope"},
                       {m.activation == nn::Activation::swiglu, "model.activation = swiglu"}});
}

std::vector<HfTensor> block_tensors(const model::ModelConfig& m, std::string_view ours, const Shape& shape) {
  if (ours == "embedding.token.weight") return {same("embed_tokens.weight", shape)};
  if (ours == "final_norm.weight") return {same("norm.weight", shape)};
  if (ours == "head.weight") return {same(std::string(kHfHead), shape)};
  const std::optional<LayerParam> param = layer_param(ours);
  if (!param) return {};
  const std::string layer = str("layers.", param->number, '.');
  const std::string_view name = param->name, kind = name.substr(name.rfind('.') + 1);  // weight or bias
  const std::string_view part = name.substr(0, name.rfind('.'));
  if (part == "attention.qkv") {
    const auto of = [&](char letter) { return str(layer, "self_attn.", letter, "_proj.", kind); };
    return qkv_tensors(m, {of('q'), of('k'), of('v')}, shape);
  }
  if (part == "mlp.up") return gate_up_tensors(layer + "mlp.", kind, shape);
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kAlike = {
      {{"norm1", "input_layernorm"},
       {"norm2", "post_attention_layernorm"},
       {"attention.q_norm", "self_attn.q_norm"},
       {"attention.k_norm", "self_attn.k_norm"},
       {"attention.out", "self_attn.o_proj"},
       {"mlp.down", "mlp.down_proj"}}};
  for (const auto& [mine, theirs] : kAlike) {
    if (part == mine) return {same(str(layer, theirs, '.', kind), shape)};
  }
  return {};
}

std::vector<HfTensor> qkv_tensors(const model::ModelConfig& m, const std::array<std::string, 3>& names,
                                  const Shape& ours) {
  const Index groups = m.kv_heads(), d = m.head_width(), q_rows = m.num_heads / groups * d;
  const Index columns = ours.rank() > 1 ? ours[1] : 1;
  const auto part = [&](const std::string& name, Index rows, Index first_row) {
    const Shape theirs = ours.rank() > 1 ? Shape{groups * rows, columns} : Shape{groups * rows};
    return row_groups(name, theirs, {groups, rows, columns, q_rows + 2 * d, first_row});
  };
  return {part(names[0], q_rows, 0), part(names[1], d, q_rows), part(names[2], d, q_rows + d)};
}

std::vector<HfTensor> gate_up_tensors(const std::string& theirs, std::string_view kind, const Shape& ours) {
  const Index columns = ours.rank() > 2 ? ours[2] : 1;
  const Shape shape = ours.rank() > 2 ? Shape{ours[0], columns} : Shape{ours[0]};
  const auto part = [&](std::string_view name, Index first_row) {
    return row_groups(str(theirs, name, "_proj.", kind), shape, {ours[0], 1, columns, 2, first_row});
  };
  return {part("gate", 0), part("up", 1)};
}

std::vector<HfTensor> zero_out_biases(const model::ModelConfig& m) {
  std::vector<HfTensor> tensors;
  if (m.biases != nn::Biases::qkv) return tensors;
  for (Index layer = 0; layer < m.num_layers; ++layer)
    tensors.push_back(same(str("layers.", layer, ".self_attn.o_proj.bias"), {m.hidden_size}));
  return tensors;
}

}  // namespace megalith::convert
