#include "megalith/convert/hf_moe.h"

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"

namespace megalith::convert {
namespace {

constexpr const char *kAuxLoss = "router_aux_loss_coef", *kNormTopK = "norm_topk_prob";

/// Versions of the library name it differently.
const char* count_key(const HfConfig& config) {
  constexpr const char *kOne = "num_experts", *kOther = "num_local_experts";
  if (config.has(kOne) && config.has(kOther) && config.size(kOne) != config.size(kOther))
    config.fail(kOne, str("must not differ from ", kOther, "; remove one"));
  return config.has(kOther) ? kOther : kOne;
}

std::string expert_name(std::string_view block, Index expert, std::string_view name) {
  return str(block, "experts.", expert, '.', name, ".weight");
}

/// [E, F, 2, H]: gate and up of every expert.
std::vector<HfTensor> first_weights(const MoeNames& names, const std::string& block, const Shape& ours) {
  const Index units = ours[1], columns = ours[3];
  std::vector<HfTensor> tensors;
  const auto add = [&](Index expert, std::string_view name, Index part) {
    const RowGroups rows = {units, 1, columns, 2, 2 * units * expert + part};
    tensors.push_back(row_groups(expert_name(block, expert, name), {units, columns}, rows));
  };
  for (Index expert = 0; expert < ours[0]; ++expert) {
    add(expert, names.gate, 0);
    add(expert, names.up, 1);
  }
  return tensors;
}

/// [E, H, F].
std::vector<HfTensor> second_weights(const MoeNames& names, const std::string& block, const Shape& ours) {
  const Index rows = ours[1], columns = ours[2];
  std::vector<HfTensor> tensors;
  for (Index expert = 0; expert < ours[0]; ++expert) {
    const RowGroups place = {1, rows, columns, 0, rows * expert};
    tensors.push_back(row_groups(expert_name(block, expert, names.down), {rows, columns}, place));
  }
  return tensors;
}

/// [E, F, 2, H] as [E, 2F, H].
HfTensor fused_first_weights(const std::string& layer, const Shape& ours) {
  const Index experts = ours[0], units = ours[1], columns = ours[3];
  return {.name = str(layer, kFusedExperts.substr(1)),
          .shape = {experts, 2 * units, columns},
          .view = {experts, 2, units, columns},
          .strides = {2 * units * columns, columns, 2 * columns, 1}};
}

std::vector<HfTensor> shared_tensors(const std::string& block, std::string_view name, const Shape& shape) {
  if (name == "up.weight") return gate_up_tensors(block + "shared_expert.", "weight", shape);
  if (name == "down.weight") return {same(block + "shared_expert.down_proj.weight", shape)};
  if (name == "gate.weight") return {same(block + "shared_expert_gate.weight", shape)};
  return {};
}

}  // namespace

void read_experts(const HfConfig& config, model::ModelConfig& m) {
  const char* const key = count_key(config);
  m.moe.num_experts = config.size(key, ops::kMaxRouterExperts);
  if (m.moe.num_experts < 2) config.fail(key, "must be at least 2: a model with one expert is a dense one");
  m.moe.top_k = config.size("num_experts_per_tok");
  if (m.moe.top_k > m.moe.num_experts)
    config.fail("num_experts_per_tok", str("must be at most ", key, " = ", m.moe.num_experts));
  m.moe.ffn_hidden_size = m.ffn_hidden_size;
  m.moe.aux_loss = config.not_negative_or(kAuxLoss, 0);
}

void write_experts(const model::ModelConfig& m, const char* count_key, nlohmann::ordered_json& config) {
  config[count_key] = m.moe.num_experts;
  config["num_experts_per_tok"] = m.moe.top_k;
  config[kAuxLoss] = m.moe.aux_loss;
  config["output_router_logits"] = false;
}

bool read_norm_topk(const HfConfig& config) { return config.flag_or(kNormTopK, false); }

void write_norm_topk(const model::ModelConfig& m, nlohmann::ordered_json& config) {
  config[kNormTopK] = m.moe.normalize_top_k || !m.moe.score_before_top_k;
}

nn::Biases read_attention_bias(const HfConfig& config, const model::ModelConfig& m) {
  if (!config.flag_or("attention_bias", false)) return nn::Biases::none;
  return m.num_moe_layers() == m.num_layers ? nn::Biases::all : nn::Biases::qkv;  // of dense MLPs it brings none
}

std::string experts_misfit(const model::ModelConfig& m) {
  return first_misfit(blocks_misfit(m), {{m.moe.has_experts(), "[moe]"},
                                         {m.moe.score == ops::RouterScore::softmax, "moe.score = softmax"},
                                         {m.moe.scale == 1, "moe.scale = 1"},
                                         {m.moe.router_skew == 0, "moe.router_skew = 0"},
                                         {m.moe.num_groups == 1, "moe.num_groups = 1"}});
}

std::string plain_experts_misfit(const model::ModelConfig& m) {
  return first_misfit(experts_misfit(m), {{m.num_moe_layers() == m.num_layers, "moe.pattern = m"},
                                          {m.moe.shared_ffn_hidden_size == 0, "moe.shared_ffn_hidden_size = 0"}});
}

bool has_attention_biases(const model::ModelConfig& m) {
  return m.biases != nn::Biases::all || m.num_moe_layers() == m.num_layers;
}

std::vector<HfTensor> named_moe_tensors(const MoeNames& names, const model::ModelConfig& model, std::string_view ours,
                                        const Shape& shape) {
  constexpr std::string_view kMoe = "moe.", kShared = "shared.";
  std::vector<HfTensor> tensors = block_tensors(model, ours, shape);
  const std::optional<LayerParam> param = layer_param(ours);
  if (!tensors.empty() || !param || !param->name.starts_with(kMoe)) return tensors;
  const std::string_view name = param->name.substr(kMoe.size());
  const std::string block = str("layers.", param->number, '.', names.block, '.');
  if (name == "router.weight") return {same(block + "gate.weight", shape)};
  if (name == "experts.up.weight") return first_weights(names, block, shape);
  if (name == "experts.down.weight") return second_weights(names, block, shape);
  if (name.starts_with(kShared)) return shared_tensors(block, name.substr(kShared.size()), shape);
  return {};
}

std::vector<HfTensor> moe_tensors(const model::ModelConfig& model, std::string_view ours, const Shape& shape) {
  return named_moe_tensors({}, model, ours, shape);
}

std::vector<HfTensor> fused_moe_tensors(const model::ModelConfig& model, std::string_view ours, const Shape& shape) {
  const std::optional<LayerParam> param = layer_param(ours);
  const std::string layer = param ? str("layers.", param->number, '.') : std::string();
  if (param && param->name == "moe.experts.up.weight") return {fused_first_weights(layer, shape)};
  if (param && param->name == "moe.experts.down.weight") return {same(layer + "mlp.experts.down_proj", shape)};
  return moe_tensors(model, ours, shape);
}

}  // namespace megalith::convert
