#include <algorithm>
#include <cmath>

#include "megalith/base/text.h"
#include "megalith/config/keys.h"
#include "megalith/config/run_config.h"

namespace megalith::config {
namespace {

/// "at least 1", "in [0, 1)", "above 0"; "" where any number will do.
std::string range_text(const Bounds& b) {
  const bool has_min = std::isfinite(b.min), has_max = std::isfinite(b.max) && b.max < 0x1p60;
  if (!has_min) return "";
  if (b.min == b.max) return exact(b.min);
  if (has_max && b.is_below) return str("in [", exact(b.min), ", ", exact(b.max), ")");
  if (has_max && b.is_above) return str("above ", exact(b.min), ", at most ", exact(b.max));
  if (has_max) return str(exact(b.min), " to ", exact(b.max));
  return str(b.is_above ? "above " : "at least ", exact(b.min));
}

std::string kind_text(const AskedValue& value) {
  constexpr const char* kKinds[] = {"integer", "number", "`true`, `false`", "text", "integers", "text or texts"};
  return kKinds[value.index()];
}

std::string value_cell(const Key& key) {
  std::string choices;
  for (const std::string_view choice : key.bounds.choices)
    choices += str(choices.empty() ? "" : ", ", '`', choice, '`');
  if (!choices.empty()) return choices;
  RunConfig any;
  if (key.bounds.text_rule != nullptr) return std::string(key.bounds.note);
  const std::string kind = kind_text(key.members.asked(any)), range = range_text(key.bounds);
  return range.empty() ? kind : str(kind, range.front() == 'i' ? " " : ", ", range);
}

std::string default_cell(const Key& key) {
  if (key.fallback.literal.empty()) return std::string(key.fallback.words);
  std::string literal(key.fallback.literal);
  std::erase(literal, '\'');
  return str('`', literal, '`');
}

std::string_view section_of(const Key& key) { return key.name.substr(0, key.name.find('.')); }

}  // namespace

std::vector<std::string_view> key_sections() {
  std::vector<std::string_view> sections;
  for (const Key& key : keys()) {
    if (sections.empty() || sections.back() != section_of(key)) sections.push_back(section_of(key));
  }
  return sections;
}

std::string key_table(std::string_view section) {
  constexpr const char* kRules[] = {"must match", "may change", "warns"};
  std::string text = "| key | value | default | on `--resume` | meaning |\n|---|---|---|---|---|\n";
  for (const Key& key : keys()) {
    if (section_of(key) != section) continue;
    text += str("| `", key.name, "` | ", value_cell(key), " | ", default_cell(key), " | ",
                kRules[static_cast<int>(key.resume.rule)], " | ", key.meaning,
                key.ranks_may == RanksMay::differ ? "; processes may differ in it |\n" : " |\n");
  }
  return text;
}

const Key* find_key(std::string_view name) {
  const auto found = std::ranges::find(keys(), name, &Key::name);
  return found == keys().end() ? nullptr : &*found;
}

}  // namespace megalith::config
