#include "megalith/corpus/line_repair.h"

#include <algorithm>

#include "megalith/base/utf8.h"

namespace megalith::corpus {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Bytes of the first character when that is white space; else 0.
std::size_t leading_white_space(std::string_view text) {
  if (text.empty()) return 0;
  const std::size_t size = std::min(utf8_front(text).length, text.size());
  return ends_in_white_space(text.substr(0, size), size) ? size : 0;
}

bool is_blank(std::string_view line) {
  while (const std::size_t size = leading_white_space(line)) line.remove_prefix(size);
  return line.empty();
}

/// Whether the line begins an indented paragraph, an item of a list, or a heading.
bool stands_alone(std::string_view line) {
  if (leading_white_space(line) > 0 || line[0] == '-' || line[0] == '*' || line[0] == '=') return true;
  const auto digits = static_cast<std::size_t>(std::find_if_not(line.begin(), line.end(), is_digit) - line.begin());
  return digits > 0 && digits < line.size() && line[digits] == '.';
}

}  // namespace

void repair_lines(std::string_view text, std::string& out) {
  bool after_line = false, after_blank = false;  // kind of the previous line; neither: there is none
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const bool is_ended = end != std::string_view::npos;
    std::string_view line = text.substr(0, end);
    text.remove_prefix(is_ended ? end + 1 : text.size());
    while (is_ended && line.ends_with('\r')) line.remove_suffix(1);
    if (is_blank(line)) {
      if (after_line) out += '\n';
      if (!after_blank && is_ended) out += '\n';
      after_blank = after_blank || is_ended;
      after_line = false;
      continue;
    }
    if (after_line) out += stands_alone(line) ? '\n' : ' ';
    out += line;
    after_line = is_ended;
    after_blank = false;
  }
  if (after_line) out += '\n';
}

}  // namespace megalith::corpus
