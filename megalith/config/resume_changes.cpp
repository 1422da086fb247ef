#include "megalith/base/str.h"
#include "megalith/config/keys.h"
#include "megalith/config/run_plan.h"

namespace megalith::config {

std::vector<KeyChange> changed_keys(RunConfig saved, const RunPlan& plan) {
  RunConfig now = plan.as_config(), defaults;
  fill_defaults(defaults);
  const auto is_set = [](const AskedValue& place) {
    return std::visit([](const auto* value) { return value->has_value(); }, place);
  };
  std::vector<KeyChange> changes;
  for (const Key& key : keys()) {
    const AskedValue is = key.members.asked(now), was = key.members.asked(saved);
    const bool is_new = is_set(is) && !is_set(was);
    const std::string now_text = value_text(is), then_text = value_text(is_new ? key.members.asked(defaults) : was);
    if (then_text != now_text) changes.push_back({&key, then_text, now_text});
  }
  return changes;
}

ResumeChanges resume_changes(const RunConfig& saved, const RunPlan& plan) {
  ResumeChanges changes;
  for (const auto& [key, was, is] : changed_keys(saved, plan)) {
    const std::string line = str(key->name, " = ", is, ": the checkpoint was trained with ", was);
    const bool applies = key->resume.applies == nullptr || key->resume.applies(plan, saved);
    if (key->resume.rule == OnResume::must_match)
      changes.refused.push_back(line);
    else if (key->resume.rule == OnResume::warns && applies)
      changes.warned.push_back(str(line, "; ", key->resume.consequence));
  }
  return changes;
}

std::vector<std::pair<std::string_view, std::string>> identity_of(const RunPlan& plan) {
  RunConfig config = plan.as_config();
  std::vector<std::pair<std::string_view, std::string>> values;
  // Checkpoints hold a hash of these texts, in which true is 1.
  const auto text = [](const AskedValue& value) {
    const auto* const flag = std::get_if<std::optional<bool>*>(&value);
    return flag != nullptr && **flag ? std::string(***flag ? "1" : "0") : value_text(value);
  };
  for (const Key& key : keys()) {
    const bool has_it = key.is_in_recipe == nullptr || key.is_in_recipe(plan);
    if (has_it && key.resume.rule == OnResume::must_match)
      values.emplace_back(key.name, text(key.members.asked(config)));
  }
  return values;
}

}  // namespace megalith::config
