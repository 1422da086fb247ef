#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/convert/hf_family.h"

// GPT-2 (class GPT2LMHeadModel). Its linear weights are [in, out], ours [out, in]; its attention.c_attn stacks all
// queries, all keys, all values, ours the query, key and value of head 0, then of head 1, and so on. The output layer
// is tied to the token table.
// Source: github.com/huggingface/transformers, models/gpt2 (names and layout).

namespace megalith::convert {
namespace {

using nlohmann::json;

constexpr double kEpsilon = 1e-5;

model::ModelConfig read_gpt2(const HfConfig& config) {
  config.expect("activation_function", "gelu_new", "must be gelu_new, GPT-2's own");
  config.expect("layer_norm_epsilon", kEpsilon, "must be 1e-05, GPT-2's own");
  config.expect("tie_word_embeddings", true, "must be true: the output layer is the token table");
  config.expect("scale_attn_weights", true, "must be true");
  config.expect("scale_attn_by_inverse_layer_idx", false, "must be false");
  config.expect("add_cross_attention", false, "must be false");
  model::ModelConfig model;
  model.num_layers = config.size("n_layer", model::kMaxLayers);
  model.hidden_size = config.size("n_embd");
  model.num_heads = config.size("n_head");
  model.ffn_hidden_size = config.size_or("n_inner", 4 * model.hidden_size);
  model.seq_len = config.size("n_positions");
  model.vocab_size = config.size("vocab_size");
  constexpr double kLibrarysDropout = 0.1;
  model.dropout = config.probability_or("resid_pdrop", kLibrarysDropout);
  model.attention_dropout = config.probability_or("attn_pdrop", kLibrarysDropout);
  model.embedding_dropout = config.probability_or("embd_pdrop", kLibrarysDropout);
  return model;
}

nlohmann::ordered_json write_gpt2(const model::ModelConfig& model) {
  return {{"activation_function", "gelu_new"},
          {"vocab_size", model.vocab_size},
          {"n_positions", model.seq_len},
          {"n_ctx", model.seq_len},
          {"n_embd", model.hidden_size},
          {"n_layer", model.num_layers},
          {"n_head", model.num_heads},
          {"n_inner", model.ffn_hidden_size},
          {"layer_norm_epsilon", kEpsilon},
          {"initializer_range", 0.02},
          {"resid_pdrop", model.dropout},
          {"attn_pdrop", model.attention_dropout},
          {"embd_pdrop", model.embedding_dropout},
          {"tie_word_embeddings", true}};
}

std::string gpt2_misfit(const model::ModelConfig& m) {
  return first_misfit({{!m.moe.has_experts(), kNoExperts},
                       {m.norm == nn::NormKind::layer, "model.norm = layer"},
                       {!m.is_post_norm(), "model.norm_placement = pre"},
                       {m.token_types == 0, "model.token_types = 0"},
                       {m.norm_eps == kEpsilon, "model.norm_eps = 1e-05"},
                       {!m.has_rope(), "model.position = learned"},
                       {m.kv_heads() == m.num_heads, "model.num_kv_heads = num_heads"},
                       {m.head_width() * m.num_heads == m.hidden_size, "model.head_dim = hidden_size / num_heads"},
                       {m.qk_norm == nn::QkNorm::none, "model.qk_norm = none"},
                       {m.activation == nn::Activation::gelu, "model.activation = gelu"},
                       {m.biases == nn::Biases::all, "model.bias = all"},
                       {m.tying == model::Tying::tied, "model.tied = true"}});
}

/// How a tensor of theirs lies compared with ours.
enum class Layout { same, transposed, fused_weight, fused_bias };

/// Ours below "layers.N." and theirs below "h.N.".
struct LayerMapping {
  std::string_view ours;
  std::string_view theirs;
  Layout layout;
};
constexpr LayerMapping kLayer[] = {
    {"norm1.weight", "ln_1.weight", Layout::same},
    {"norm1.bias", "ln_1.bias", Layout::same},
    {"attention.qkv.weight", "attn.c_attn.weight", Layout::fused_weight},
    {"attention.qkv.bias", "attn.c_attn.bias", Layout::fused_bias},
    {"attention.out.weight", "attn.c_proj.weight", Layout::transposed},
    {"attention.out.bias", "attn.c_proj.bias", Layout::same},
    {"norm2.weight", "ln_2.weight", Layout::same},
    {"norm2.bias", "ln_2.bias", Layout::same},
    {"mlp.up.weight", "mlp.c_fc.weight", Layout::transposed},
    {"mlp.up.bias", "mlp.c_fc.bias", Layout::same},
    {"mlp.down.weight", "mlp.c_proj.weight", Layout::transposed},
    {"mlp.down.bias", "mlp.c_proj.bias", Layout::same},
};

HfTensor tensor_of(Layout layout, const model::ModelConfig& m, std::string name, const Shape& ours) {
  const Index h = m.hidden_size, a = m.num_heads, d = h / a;
  switch (layout) {
    case Layout::transposed:
      return transposed(std::move(name), ours);
    case Layout::fused_weight:  // theirs: input; part (query, key, value), head, dimension. Ours: head, part, dimension
      return {.name = std::move(name), .shape = {h, 3 * h}, .view = {h, 3, a, d}, .strides = {1, d * h, 3 * d * h, h}};
    case Layout::fused_bias:
      return {.name = std::move(name), .shape = {3 * h}, .view = {3, a, d}, .strides = {d, 3 * d, 1}};
    default:
      return same(std::move(name), ours);
  }
}

std::vector<HfTensor> gpt2_tensors(const model::ModelConfig& model, std::string_view ours, const Shape& shape) {
  if (ours == "embedding.token.weight") return {same("wte.weight", shape)};
  if (ours == "embedding.position.weight") return {same("wpe.weight", shape)};
  if (ours == "final_norm.weight") return {same("ln_f.weight", shape)};
  if (ours == "final_norm.bias") return {same("ln_f.bias", shape)};
  if (const std::optional<LayerParam> param = layer_param(ours)) {
    for (const LayerMapping& one : kLayer) {
      if (one.ours == param->name)
        return {tensor_of(one.layout, model, str("h.", param->number, '.', one.theirs), shape)};
    }
  }
  return {};
}

/// Masks.
bool is_gpt2_ignored(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

}  // namespace

const HfFamily kHfGpt2 = {.model_type = "gpt2",
                          .architecture = "GPT2LMHeadModel",
                          .name = "GPT-2",
                          .prefix = "transformer.",
                          .read_config = read_gpt2,
                          .write_config = write_gpt2,
                          .misfit = gpt2_misfit,
                          .tensors_of = gpt2_tensors,
                          .is_ignored = is_gpt2_ignored};

}  // namespace megalith::convert
