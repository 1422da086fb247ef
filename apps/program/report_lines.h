#pragma once
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "megalith/base/error.h"
#include "megalith/base/types.h"

namespace megalith::apps {

/// A number by a format of printf.
inline std::string printed(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

/// 1234567 -> "1,234,567"
inline std::string grouped(Index value) {
  std::string text = std::to_string(value);
  for (std::size_t at = text.size(); at > 3 && text[at - 4] != '-'; at -= 3) text.insert(at - 3, ",");
  return text;
}

/// Appends a line of a name, with blanks for its underscores, and a value.
inline void add_line(std::string& text, std::string name, const std::string& value) {
  std::ranges::replace(name, '_', ' ');
  constexpr std::size_t kColumn = 26;
  name.resize(std::max(name.size() + 1, kColumn), ' ');
  text += name + value + '\n';
}

/// Prints a report on standard output. Throws IoError.
inline void print_report(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) throw IoError("[standard output] write failed");
}

}  // namespace megalith::apps
