#include "megalith/base/text_table.h"

#include <algorithm>

#include "megalith/base/str.h"

namespace megalith {

std::string text_table(const std::vector<std::vector<std::string>>& rows, Align align) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += (i > 0 ? "  " : "") + (align == Align::right ? padding + row[i] : row[i] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string joined(const std::vector<int>& numbers, std::string_view separator) {
  std::string text;
  for (const int number : numbers) text += str(text.empty() ? "" : separator, number);
  return text;
}

}  // namespace megalith
