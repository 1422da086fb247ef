#include "megalith/config/model_changes.h"

#include "megalith/config/keys.h"

namespace megalith::config {
namespace {

/// Every key of a model with its value, also where a recipe would leave it out. What follows from other keys in both
/// models is left out: those are compared.
RunConfig values_of(const model::ModelConfig& m, const model::ModelConfig& other) {
  RunPlan plan;
  plan.model = m;
  if (other.num_kv_heads != 0) plan.model.num_kv_heads = m.kv_heads();
  if (other.head_dim != 0) plan.model.head_dim = m.head_width();
  if (other.num_positions != 0) plan.model.num_positions = m.positions();
  RunConfig config;
  for (const Key& key : keys()) {
    if (key.members.get != nullptr) key.members.get(plan, config);
  }
  return config;
}

/// A softmax over the chosen experts is one over all of them, divided by its sum over the chosen ones. Exports to
/// Hugging Face's format write whichever form their family has.
bool weighs_alike(const nn::MoeConfig& a, const nn::MoeConfig& b) {
  const auto normalizes = [](const nn::MoeConfig& moe) {
    return moe.normalize_top_k || (moe.score == ops::RouterScore::softmax && !moe.score_before_top_k);
  };
  return a.score == b.score && normalizes(a) == normalizes(b);
}

bool has_dense_layers(const model::ModelConfig& m) { return m.num_moe_layers() < m.num_layers; }

/// Whether different values of a key, or values that nothing reads, are the same model.
bool is_same_model(std::string_view key, const model::ModelConfig& a, const model::ModelConfig& b) {
  if (key == "model.family") return a.is_bert() == b.is_bert();  // it sets defaults of other keys
  if (key == "bert.order") return !a.is_masked_lm() || !b.is_masked_lm() || a.bert.is_pair() == b.bert.is_pair();
  if (key == "model.tied" && b.task) return true;  // its head has no logits of tokens
  if (key == "model.ffn_hidden_size") return !has_dense_layers(a) && !has_dense_layers(b);
  if (key.starts_with("model.rope_")) return !a.has_rope() || !b.has_rope();
  if (!key.starts_with("moe.") || key == "moe.num_experts") return false;
  if (!a.moe.has_experts() || !b.moe.has_experts()) return true;
  if (key == "moe.pattern") return a.moe_layers() == b.moe_layers();
  return (key == "moe.score_before_top_k" || key == "moe.normalize_top_k") && weighs_alike(a.moe, b.moe);
}

/// Whether no parameter depends on a key: on rotations, or on the length of a sample where it is not the number of
/// positions.
bool is_without_parameters(std::string_view key, const model::ModelConfig& a, const model::ModelConfig& b) {
  const bool rotate = a.has_rope() && b.has_rope();
  if (key == "model.seq_len") return rotate || a.positions() == b.positions();
  return key.starts_with("model.rope_") && rotate;
}

}  // namespace

ModelChanges model_changes(const RunPlan& saved, const RunPlan& plan) {
  const model::ModelConfig &then = saved.model, &now = plan.model;
  RunConfig was = values_of(then, now), is = values_of(now, then);
  ModelChanges changes;
  for (const Key& key : keys()) {
    const bool is_model = key.name.starts_with("model.") || key.name.starts_with("moe.") || key.name == "bert.order";
    if (!is_model || key.resume.rule != OnResume::must_match) continue;
    const std::string was_text = value_text(key.members.asked(was)), is_text = value_text(key.members.asked(is));
    if (was_text == is_text || is_same_model(key.name, then, now)) continue;
    std::vector<std::string>& lines = is_without_parameters(key.name, then, now) ? changes.taken : changes.refused;
    lines.push_back(str(key.name, " = ", is_text, ": the checkpoint's model has ", was_text));
  }
  return changes;
}

}  // namespace megalith::config
