#include "megalith/config/run_config.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/config/keys.h"
#include "megalith/config/other_names.h"
#include "megalith/config/toml_text.h"
#include "megalith/io/reader.h"

namespace megalith::config {
namespace {

std::string as_text(const toml::node& node) { return str(toml::node_view<const toml::node>(node)); }

template <class T>
std::optional<T> convert(const toml::node& node) {
  if constexpr (std::is_same_v<T, Index>) {
    if (const auto* integer = node.as_integer()) return integer->get();
  } else if constexpr (std::is_same_v<T, double>) {
    if (node.is_number()) return node.value<double>();
  } else if constexpr (std::is_same_v<T, bool>) {
    if (const auto* boolean = node.as_boolean()) return boolean->get();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (const auto* text = node.as_string()) return text->get();
  }
  return std::nullopt;
}

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class T>
constexpr bool kIsText = std::is_same_v<T, std::string> || std::is_same_v<T, std::vector<std::string>>;

template <class T>
constexpr std::string_view kind_of() {
  if constexpr (std::is_same_v<T, Index>)
    return "an integer";
  else if constexpr (std::is_same_v<T, double>)
    return "a number";
  else if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_same_v<T, std::string>)
    return "a text in quotes";
  else if constexpr (std::is_same_v<T, std::vector<Index>>)
    return "a list of integers";
  else
    return "a text in quotes or a list of them";
}

template <class T>
std::optional<T> convert_any(const toml::node& node) {
  if constexpr (IsVector<T>::value) {
    using Element = typename T::value_type;
    T values;
    if (const auto* array = node.as_array()) {
      for (const toml::node& element : *array) {
        const std::optional<Element> value = convert<Element>(element);
        if (!value) return std::nullopt;
        values.push_back(*value);
      }
      return values;
    }
    if constexpr (std::is_same_v<Element, std::string>) {
      if (const auto one = convert<std::string>(node)) return T{*one};
    }
    return std::nullopt;
  } else {
    return convert<T>(node);
  }
}

/// "; write 1000" for an integer that is written as a real (1e3).
template <class T>
std::string as_integer(const toml::node& node) {
  if constexpr (!std::is_same_v<T, Index>) return "";
  const auto* const real = node.as_floating_point();
  constexpr double kExact = 0x1p53;
  if (real == nullptr || !(std::abs(real->get()) <= kExact) || std::trunc(real->get()) != real->get()) return "";
  return str("; write ", static_cast<Index>(real->get()));
}

/// False: the value has the wrong type, which is reported.
bool assign(const Key& row, const AskedValue& place, const toml::node& node, Problems& problems) {
  return std::visit(
      [&]<class T>(std::optional<T>* target) {
        std::optional<T> value = convert_any<T>(node);
        const std::string_view or_number = row.bounds.note.starts_with("number") ? "a number or " : "";
        if (!value)
          problems.add(row.name, as_text(node), str("must be ", or_number, kind_of<T>(), as_integer<T>(node)));
        *target = std::move(value);
        return target->has_value();
      },
      place);
}

/// The rule that an unknown key breaks, with what was meant.
std::string no_such_key(std::string_view key) {
  const MeantKey meant = meant_key(key);
  std::string text = "no such key";
  if (!meant.key.empty()) text += str("; did you mean ", meant.key, "?");
  if (!meant.how.empty()) text += str(meant.key.empty() ? ". " : " ", meant.how);
  return text;
}

/// Fills a RunConfig and collects what is wrong with the recipe.
class RecipeReader {
 public:
  RecipeReader(RunConfig& config, Problems& problems) : config_(config), problems_(problems) {}

  void read_table(const toml::table& root) {
    for (const auto& [section, node] : root) {
      const auto* table = node.as_table();
      if (table == nullptr) {
        set_key(std::string(section.str()), node);
        continue;
      }
      read_section(std::string(section.str()), *table);
      has_empty_moe_ = has_empty_moe_ || (section.str() == "moe" && table->empty());
    }
  }

  /// After all settings.
  void check_empty_moe() {
    if (has_empty_moe_ && !config_.moe.num_experts && !config_.model.preset)
      problems_.add_line("[moe] is empty: give moe.num_experts, or remove the section");
  }

  /// The value of a setting: TOML where it parses as that, else plain text ("--set data.train=corpus.txt").
  void read_setting(const std::string& setting) {
    const std::size_t equals = setting.find('=');
    const std::string key = setting.substr(0, equals);
    const bool has_section = key.find('.') != std::string::npos;
    if (equals == std::string::npos || (!has_section && meant_key(key).is_none())) {
      problems_.add_line(str("--set ", setting, ": must be section.key=value"));
      return;
    }
    const std::string value = setting.substr(equals + 1);
    const Key* const row = find_key(key);
    const bool takes_text = row != nullptr && std::visit([]<class T>(std::optional<T>*) { return kIsText<T>; },
                                                         row->members.asked(config_));
    if (takes_text && !value.starts_with('"') && !value.starts_with('\'') && !value.starts_with('[')) {
      set_key(key, toml::value<std::string>(value));
      return;
    }
    if (toml_too_deep(value))
      return problems_.add(key, io::printable(value), str("nested deeper than ", kMaxTomlDepth));
    try {
      set_key(key, *read_toml("value = " + value).get("value"));
    } catch (const TomlError&) {
      const bool takes_list =
          row != nullptr &&
          std::visit([]<class T>(std::optional<T>*) { return IsVector<T>::value; }, row->members.asked(config_));
      if (takes_list && value.starts_with('[')) {
        return problems_.add(key, value,
                             "is no list: it takes [\"a\", \"b\"] or [1, 2], and quotes around all of it in a shell");
      }
      set_key(key, toml::value<std::string>(value));
    }
  }

 private:
  /// `[moe.echo]` and `echo.slots` in `[moe]` are alike.
  void read_section(const std::string& section, const toml::table& table) {
    for (const auto& [name, value] : table) {
      const std::string key = str(section, ".", name.str());
      const auto is_within = [&](const Key& row) { return row.name.starts_with(key + "."); };
      if (value.is_table() && std::ranges::any_of(keys(), is_within))
        read_section(key, *value.as_table());
      else
        set_key(key, value);
    }
  }

  void set_key(const std::string& key, const toml::node& node) {
    if (const Key* const row = find_key(key)) {
      if (row->bounds.text_rule != nullptr && node.is_number())
        return set_key(key, toml::value<std::string>(exact(*node.value<double>())));
      if (!assign(*row, row->members.asked(config_), node, problems_)) config_.mistyped.push_back(row->name);
      return;
    }
    const auto in_table = std::ranges::find_if(keys(), [&](const Key& row) { return row.name.starts_with(key + "."); });
    problems_.add(
        key, as_text(node),
        in_table == keys().end() ? no_such_key(key) : str("is a table: set its keys, such as ", in_table->name));
  }

  RunConfig& config_;
  Problems& problems_;
  bool has_empty_moe_ = false;
};

/// Reports what is wrong in a text that is not TOML: the keys that are there twice, and the mistake unless it is one
/// of them.
void report_broken_toml(std::string_view toml, const TomlError& error, std::string_view source) {
  Problems problems;
  bool is_reported = false;
  for (const RepeatedKey& repeated : repeated_keys(toml)) {
    is_reported = is_reported || repeated.second_line == error.line;
    problems.add_line(str("line ", repeated.second_line, ": ", repeated.name, " is also in line ", repeated.first_line,
                          ": keep one of them"));
  }
  const std::string mistake = str(source, ":", error.line, ":", error.column, ": ", error.rule, " (recipes are TOML)");
  if (problems.empty()) throw ConfigError(mistake);
  if (!is_reported) problems.add_line(mistake);
  problems.throw_if_any(source);
}

std::string quoted(const std::string& text) { return str(toml::value<std::string>(text)); }

template <class T>
std::string print(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, double>) {
    const std::string text = exact(value);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return quoted(value);
  } else if constexpr (IsVector<T>::value) {
    std::string list;
    for (const auto& element : value) list += (list.empty() ? "" : ", ") + print(element);
    return "[" + list + "]";
  } else {
    return std::to_string(value);
  }
}

}  // namespace

MeantKey meant_key(std::string_view key) {
  if (const OtherName* const other = find_other_name(key)) return {other->key, other->how};
  std::vector<std::string_view> names;
  for (const Key& row : keys()) names.push_back(row.name);
  const auto only = [&](auto&& fits) {
    std::string_view found;
    for (const std::string_view name : names) {
      if (!fits(name)) continue;
      if (!found.empty()) return std::string_view();
      found = name;
    }
    return found;
  };
  const std::string written = as_key(key), last = written.substr(written.rfind('.') + 1);
  const auto joined = [](std::string_view name) {
    std::string text(name);
    std::ranges::replace(text, '.', '_');
    return text;
  };
  const auto is_joined = [&](auto name) {  // train.log_interval for log.interval, eval.interval for train.eval_interval
    return joined(name) == last || joined(name) == joined(written) || name.ends_with(str(".", joined(written)));
  };
  if (const auto same = only(is_joined); !same.empty()) return {same};
  if (const auto longer = only([&](auto name) { return name.starts_with(written); }); !longer.empty()) return {longer};
  if (const auto shorter = only([&](auto name) { return written.starts_with(str(name, "_")); }); !shorter.empty())
    return {shorter};
  if (const auto same = only([&](auto name) { return name.ends_with(str(".", last)); }); !same.empty()) return {same};
  return {nearest(written, names)};
}

RunConfig read_recipe(std::string_view toml, std::string source, std::span<const std::string> settings) {
  RunConfig config;
  config.source = std::move(source);
  Problems problems;
  RecipeReader reader(config, problems);
  try {
    reader.read_table(read_toml(toml));
  } catch (const TomlError& error) {
    report_broken_toml(toml, error, config.source);
  }
  for (const std::string& setting : settings) reader.read_setting(setting);
  reader.check_empty_moe();
  if (problems.lines().size() > config.mistyped.size()) problems.throw_if_any(config.source);
  config.problems = problems.lines();
  return config;
}

RunConfig parse_recipe(std::string_view toml, std::string source, std::span<const std::string> settings) {
  RunConfig config = read_recipe(toml, std::move(source), settings);
  Problems problems;
  for (const std::string& line : config.problems) problems.add_line(line);
  problems.throw_if_any(config.source);
  return config;
}

void fill_defaults(RunConfig& config) {
  Problems problems;
  for (const Key& key : keys()) {
    const AskedValue place = key.members.asked(config);
    const bool is_set = std::visit([](const auto* value) { return value->has_value(); }, place);
    if (is_set || key.fallback.literal.empty()) continue;
    assign(key, place, *read_toml(str("value = ", key.fallback.literal)).get("value"), problems);
  }
  if (!problems.empty()) throw InternalError(str("[keys] ", problems.lines().front(), " (its default)"));
}

std::vector<std::pair<std::string_view, std::string>> toml_values(RunConfig config) {
  std::vector<std::pair<std::string_view, std::string>> values;
  for (const Key& key : keys()) {
    std::visit(
        [&](const auto* value) {
          if (*value) values.emplace_back(key.name, print(**value));
        },
        key.members.asked(config));
  }
  return values;
}

std::string to_toml(RunConfig config) {
  std::string text;
  std::string_view section;
  for (const auto& [key, value] : toml_values(std::move(config))) {
    const std::string_view name = key.substr(0, key.find('.'));
    if (name != section) text += str(text.empty() ? "" : "\n", "[", name, "]\n");
    section = name;
    text += str(key.substr(name.size() + 1), " = ", value, "\n");
  }
  return text;
}

}  // namespace megalith::config
