#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/base/str.h"
#include "megalith/config/keys.h"
#include "megalith/config/run_plan.h"

namespace megalith::config {
namespace {

/// The value of a key that a recipe lacks, if its default in words is one ("`adamw`").
std::string value_in(std::string_view words) {
  const bool is_value = words.size() > 2 && words.find('`', 1) == words.size() - 1 && words.front() == '`';
  return is_value ? std::string(words.substr(1, words.size() - 2)) : "unset";
}

}  // namespace

std::string default_text(const Key& key) {
  RunConfig defaults;
  fill_defaults(defaults);
  const AskedValue usual = key.members.asked(defaults);
  return is_set(usual) ? value_text(usual) : value_in(key.fallback.words);
}

std::vector<KeyChange> changed_keys(RunConfig saved, const RunPlan& plan) {
  RunConfig now = plan.as_config();
  std::vector<KeyChange> changes;
  for (const Key& key : keys()) {
    const AskedValue is = key.members.asked(now), was = key.members.asked(saved);
    const auto text = [&](const AskedValue& value, const AskedValue& other) {  // one of the two recipes may lack it
      return is_set(value) || !is_set(other) ? value_text(value) : default_text(key);
    };
    const std::string now_text = text(is, was), then_text = text(was, is);
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

std::string wsd_change(const RunConfig& saved, const RunPlan& plan, Index step, Index updates) {
  const optim::OptimConfig& now = plan.optimizer;
  const std::optional<Index>&run_steps = saved.train.steps, &decay_steps = saved.optimizer.decay_steps;
  if (now.decay != optim::DecayCurve::wsd || saved.optimizer.decay != "wsd" || !run_steps || !decay_steps) return "";
  const bool is_same = *run_steps == now.run_steps && *decay_steps == now.decay_steps;
  if (is_same || step >= now.run_steps) return "";
  optim::OptimConfig then = now;
  then.run_steps = *run_steps;
  then.decay_steps = *decay_steps;
  const ops::LearningRate was = optim::step_rules(then, {}).learning_rate,
                          is = optim::step_rules(now, {}).learning_rate;
  const std::int64_t stable = std::min(was.decay_begin, is.decay_begin);
  if (updates <= stable) return "";
  return str("train.steps = ", now.run_steps, ", optimizer.decay_steps = ", now.decay_steps,
             ": the checkpoint of step ", step, " was trained with ", *run_steps, " and ", *decay_steps,
             ", a decay after step ", was.decay_begin, "; it goes on with a decay after step ", is.decay_begin,
             ", so the learning rate jumps from ", was.of(updates), " to ", is.of(updates + 1), " at step ", step + 1,
             "; a checkpoint of step ", stable, " or before has no jump");
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
