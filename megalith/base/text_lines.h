#pragma once
#include <algorithm>
#include <cstddef>
#include <string_view>

namespace megalith {

/// take(line, number) of every line of a text, numbered from 1, without its end. An empty text has none; the last line
/// need not end.
template <class Take>
void for_each_line(std::string_view text, const Take& take) {
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    take(text.substr(begin, end - begin), ++number);
    begin = end + 1;
  }
}

}  // namespace megalith
