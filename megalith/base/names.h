#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace megalith {

/// The enumerator that `name` stands for, where names[i] is that of enumerator i; nothing for any other text.
template <class Enum, std::size_t kCount>
std::optional<Enum> enumerator_of(const std::array<std::string_view, kCount>& names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

/// "[a, b]"
inline std::string bracketed(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return "[" + text + "]";
}

}  // namespace megalith
