#include "megalith/tasks/token_places.h"

#include <algorithm>

#include "megalith/base/utf8.h"

namespace megalith::tasks {
namespace {

/// The range without white space at both ends.
TextRange without_blanks(std::string_view text, TextRange range) {
  const auto at = [](Index i) { return static_cast<std::size_t>(i); };
  while (range.begin < range.end && ends_in_white_space(text, at(range.end))) {
    --range.end;
    while (range.end > range.begin && (static_cast<unsigned char>(text[at(range.end)]) & 0xC0) == 0x80) --range.end;
  }
  while (range.begin < range.end) {
    const auto size = static_cast<Index>(utf8_front(text.substr(at(range.begin))).length);
    if (!ends_in_white_space(text, at(range.begin + size))) break;
    range.begin += size;
  }
  return range;
}

/// Where each of the tokens `ids` of `part` ends; -1: it cannot be told from the next one.
std::vector<Index> token_ends(const tokenizer::Tokenizer& tokenizer, std::string_view part,
                              const std::vector<std::int32_t>& ids) {
  std::vector<Index> ends(ids.size(), -1);
  std::vector<std::int32_t> some;
  std::size_t found = 0;  // tokens whose end was met
  for (std::size_t p = 0; ids.size() > 1 && p < part.size();) {
    p += utf8_front(part.substr(p)).length;
    some.clear();
    tokenizer.encode(part.substr(0, p), some);
    if (some.empty() || some.size() < found || some.size() > ids.size()) continue;
    if (!std::equal(some.begin(), some.end(), ids.begin())) continue;
    found = some.size();
    ends[found - 1] = static_cast<Index>(p);
  }
  ends.back() = std::ssize(part);
  return ends;
}

}  // namespace

PlacedTokens place_tokens(const tokenizer::Tokenizer& tokenizer, std::string_view text) {
  PlacedTokens placed;
  std::vector<std::int32_t> ids;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = tokenizer.next_cut(text, begin + utf8_front(text.substr(begin)).length);
    const std::string_view part = text.substr(begin, end - begin);
    ids.clear();
    tokenizer.encode(part, ids);
    if (!ids.empty()) {
      const std::vector<Index> ends = token_ends(tokenizer, part, ids);
      Index from = 0;
      for (std::size_t i = 0; i < ids.size();) {
        std::size_t last = i;
        while (ends[last] < 0) ++last;
        const TextRange inside{from, ends[last]},
            whole{static_cast<Index>(begin) + inside.begin, static_cast<Index>(begin) + inside.end};
        placed.ranges.insert(placed.ranges.end(), last + 1 - i, without_blanks(text, whole));
        from = ends[last];
        i = last + 1;
      }
      placed.ids.insert(placed.ids.end(), ids.begin(), ids.end());
    }
    begin = end;
  }
  return placed;
}

}  // namespace megalith::tasks
