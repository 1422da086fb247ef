#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::support {

/// What a terminal of so many columns shows of a text with line feeds, carriage returns and "erase to the end of the
/// line": its rows, of which a line that is too long takes several.
inline std::vector<std::string> rows_of(std::string_view text, std::size_t columns) {
  constexpr std::string_view kErase = "\033[K";
  std::vector<std::string> rows(1);
  std::size_t at = 0;
  const auto next_row = [&] {
    rows.emplace_back();
    at = 0;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, kErase.size()) == kErase) {
      rows.back().resize(std::min(rows.back().size(), at));
      i += kErase.size() - 1;
    } else if (text[i] == '\r') {
      at = 0;
    } else if (text[i] == '\n') {
      next_row();
    } else {
      if (at == columns) next_row();
      std::string& row = rows.back();
      row.resize(std::max(row.size(), at + 1), ' ');
      row[at++] = text[i];
    }
  }
  if (rows.back().empty()) rows.pop_back();
  return rows;
}

}  // namespace megalith::support
