#include "megalith/config/preset_rules.h"

#include "megalith/base/error.h"
#include "megalith/config/keys.h"
#include "megalith/config/plan_rules.h"

namespace megalith::config {
namespace {

/// Calls visit(key) for every key of the model that is part of a plan.
template <class Visit>
void for_each_model_key(const Visit& visit) {
  for (const Key& key : keys()) {
    const bool is_model = key.name.starts_with("model.") || key.name.starts_with("moe.");
    if (is_model && key.members.get != nullptr) visit(key);
  }
}

/// A model as a recipe that sets every key.
RunConfig recipe_of(const model::ModelConfig& model) {
  RunPlan plan;
  plan.model = model;
  RunConfig config;
  for_each_model_key([&](const Key& key) { key.members.get(plan, config); });
  return config;
}

/// The model of a recipe that sets only a preset's family.
model::ModelConfig without_keys(const model::ModelConfig& m) {
  model::ModelConfig defaults = model::family_defaults(m.family);
  defaults.ffn_hidden_size = model::default_ffn_hidden_size(m.family, m.hidden_size);
  return defaults;
}

/// Keys beside model.preset that make another model of it. Where positions are rotations, none is a part of the model.
std::vector<std::string> preset_warnings(RunConfig& asked, RunConfig& of_preset, const model::Preset& preset) {
  std::vector<std::string> all;
  for_each_model_key([&](const Key& key) {
    if (key.resume.rule != OnResume::must_match || !is_set(key.members.asked(asked))) return;
    if (key.name == "model.seq_len" && preset.model.has_rope()) return;
    const std::string value = value_text(key.members.asked(asked)),
                      of_its_own = value_text(key.members.asked(of_preset));
    if (value != of_its_own)
      all.push_back(str(key.name, " = ", value, ": model.preset = ", preset.name, " has ", of_its_own,
                        "; the run trains another model"));
  });
  return all;
}

}  // namespace

bool derive_preset(RunConfig& c, RunPlan& plan, Problems& out) {
  if (!c.model.preset) return true;
  try {
    const model::Preset& preset = model::preset(*c.model.preset);
    RunConfig of_preset = recipe_of(preset.model), defaults = recipe_of(without_keys(preset.model));
    plan.recipe_warnings = preset_warnings(c, of_preset, preset);
    const bool is_its_vocabulary = c.model.vocab_size.value_or(preset.model.vocab_size) == preset.model.vocab_size;
    if (!is_its_vocabulary) of_preset.model.padded_vocab_size = defaults.model.padded_vocab_size;
    set_default(c.model.family, preset.model.family);
    for_each_model_key([&](const Key& key) {
      std::visit(
          [&](auto* place) {
            const auto& value = *std::get<decltype(place)>(key.members.asked(of_preset));
            const auto& fallback = *std::get<decltype(place)>(key.members.asked(defaults));
            if (!place->has_value() && value != fallback) *place = value;
          },
          key.members.asked(c));
    });
  } catch (const ConfigError& error) {
    out.add_line(error.what());
    return false;
  }
  return true;
}

}  // namespace megalith::config
