#include <algorithm>
#include <cmath>

#include "megalith/base/text.h"
#include "megalith/config/keys.h"
#include "megalith/config/other_names.h"
#include "megalith/config/run_config.h"

namespace megalith::config {
namespace {

/// "16777216"; "2^60" where digits are harder to read.
std::string limit_text(double limit) {
  int exponent = 0;
  const bool is_power = std::frexp(limit, &exponent) == 0.5;
  return is_power && limit >= 0x1p40 ? str("2^", exponent - 1) : exact(limit);
}

/// The rule that a number breaks; "" when it breaks none.
std::string broken_range(const Bounds& b, double value) {
  const bool is_too_small = b.is_above ? value <= b.min : value < b.min;
  const bool is_too_large = b.is_below ? value >= b.max : value > b.max;
  if (!is_too_small && !is_too_large) return "";
  if (b.min == b.max) return "must be " + limit_text(b.max);
  if (b.is_above && std::isfinite(b.max))
    return str("must be above ", limit_text(b.min), ", at most ", limit_text(b.max));
  if (b.is_below) return str("must be in [", limit_text(b.min), ", ", limit_text(b.max), ")");
  if (is_too_large) return "must be at most " + limit_text(b.max);
  if (b.min == 0) return b.is_above ? "must be positive" : "must not be negative";
  return "must be at least " + limit_text(b.min);
}

std::string with_note(const std::string& rule, std::string_view note) {
  return rule.empty() || note.empty() ? rule : str(rule, " (", note, ")");
}

/// "a, b or c"
std::string either(std::span<const std::string_view> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += str(i == 0 ? "" : i + 1 == names.size() ? " or " : ", ", names[i]);
  return text;
}

/// The rule that a value breaks; of a list that of its first bad element.
template <class T>
std::string broken_rule(const Bounds& bounds, const T& value) {
  if constexpr (std::is_same_v<T, std::vector<Index>>) {
    for (const Index element : value) {
      if (const std::string rule = bounds.broken_by(element); !rule.empty()) return str(element, " ", rule);
    }
    return "";
  } else if constexpr (requires { bounds.broken_by(value); } && !std::is_same_v<T, bool>) {
    return bounds.broken_by(value);
  } else {
    return "";
  }
}

/// The legal value that is nearest to one that broke its bounds; nothing for what is no number.
template <class T>
std::optional<T> nearest_legal(const Bounds& b, const T& value) {
  if constexpr (std::is_same_v<T, Index>) {
    return static_cast<Index>(static_cast<double>(value) < b.min ? b.min : std::min(b.max, kMaxInteger));
  } else if constexpr (std::is_same_v<T, double>) {
    return value > b.max ? b.max : b.is_above ? std::min(b.min + 1, b.max) : b.min;
  } else {
    return std::nullopt;
  }
}

}  // namespace

std::string Bounds::broken_by(Index value) const {
  Bounds integers = *this;
  if (!std::isfinite(max)) integers.max = kMaxInteger;
  if (!std::isfinite(min)) integers.min = -kMaxInteger;
  return with_note(broken_range(integers, static_cast<double>(value)), note);
}

std::string Bounds::broken_by(double value) const {
  return with_note(std::isfinite(value) ? broken_range(*this, value) : "must be finite", note);
}

std::string Bounds::broken_by(const std::string& value) const {
  if (text_rule != nullptr) return std::string(text_rule(value));
  if (choices.empty() || std::ranges::find(choices, value) != choices.end()) return "";
  const std::string_view near = meant_value(value, choices);
  return with_note("must be " + either(choices), note) + (near.empty() ? "" : str("; did you mean ", near, "?"));
}

bool BrokenKeys::any(std::string_view prefix) const {
  return std::ranges::any_of(names, [&](std::string_view name) { return name.starts_with(prefix); });
}

bool BrokenKeys::has(std::string_view name) const { return std::ranges::find(names, name) != names.end(); }

void BrokenKeys::add_others(const Problems& from, Problems& to) const {
  for (const std::string& line : from.lines()) {
    const bool names_one =
        std::ranges::any_of(names, [&](std::string_view name) { return line.find(name) != std::string::npos; });
    if (!names_one) to.add_line(line);
  }
}

void check_bounds(const Key& key, RunConfig& config, BrokenKeys& broken, Problems& out) {
  const AskedValue place = key.members.asked(config);
  std::visit(
      [&]<class T>(std::optional<T>* value) {
        if (!*value || broken.has(key.name)) return;  // what stands for a broken value is not the user's
        std::string rule = broken_rule(key.bounds, **value);
        if (rule.empty()) return;
        if constexpr (std::is_same_v<T, std::string>) {
          if (const std::string_view how = how_to_write(key.name, **value); !how.empty()) rule += str("; ", how);
        }
        out.add(key.name, value_text(place), rule);
        broken.names.push_back(key.name);
        const T wrong = **value;
        value->reset();
        if (key.fallback.literal.empty())
          *value = nearest_legal(key.bounds, wrong);
        else
          fill_defaults(config);
      },
      place);
}

void refuse_section(std::string_view section, const std::string& rule, RunConfig& config, Problems& out) {
  for (const Key& key : keys()) {
    if (!key.name.starts_with(section)) continue;
    const AskedValue value = key.members.asked(config);
    if (std::visit([](auto* place) { return place->has_value(); }, value)) out.add(key.name, value_text(value), rule);
    std::visit([](auto* place) { place->reset(); }, value);
  }
}

std::string value_text(const AskedValue& value) {
  return std::visit(
      []<class T>(const std::optional<T>* asked) -> std::string {
        if (!*asked) return "unset";
        if constexpr (std::is_same_v<T, double>) {
          return exact(**asked);
        } else if constexpr (std::is_same_v<T, bool>) {
          return **asked ? "true" : "false";
        } else if constexpr (requires { std::declval<std::ostream&>() << **asked; }) {
          return str(**asked);
        } else {
          std::string text;
          for (const auto& element : **asked) text += str(text.empty() ? "" : ", ", element);
          return "[" + text + "]";
        }
      },
      value);
}

}  // namespace megalith::config
