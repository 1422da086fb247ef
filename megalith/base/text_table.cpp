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

std::string stretches(const std::vector<int>& numbers) {
  constexpr std::size_t kMaxWidth = 20;
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    while (end < numbers.size() && numbers[end] - numbers[begin] == static_cast<int>(end - begin)) ++end;
    const std::string last = end - begin > 1 ? str("-", numbers[end - 1]) : "";
    const std::string one = str(text.empty() ? "" : ", ", numbers[begin], last);
    if (text.size() + one.size() > kMaxWidth) return str(text, " and ", numbers.size() - begin, " more");
    text += one;
  }
  return text;
}

}  // namespace megalith
