#include "megalith/data/sentences.h"

#include <algorithm>
#include <iterator>

#include <utf8proc.h>

#include "megalith/base/utf8.h"

namespace megalith::data {
namespace {

constexpr std::string_view kAbbreviations[] = {
    "Adm",  "Apr", "Aug",  "Ave", "Blvd", "Brig", "Bros",  "Capt", "Cf",  "Ch",   "Chap", "Cmdr",   "Co",   "Col",
    "Corp", "Dec", "Dept", "Dr",  "Ed",   "Eq",   "Esq",   "Feb",  "Fig", "Figs", "Fr",   "Ft",     "Gen",  "Gov",
    "Hon",  "Inc", "Jan",  "Jr",  "Jul",  "Jun",  "Lieut", "Lt",   "Ltd", "Maj",  "Mar",  "Messrs", "Mlle", "Mme",
    "Mr",   "Mrs", "Ms",   "Mt",  "No",   "Nos",  "Nov",   "Oct",  "Op",  "Pp",   "Pres", "Prof",   "Pvt",  "Rep",
    "Rev",  "Rt",  "Sec",  "Sen", "Sep",  "Sept", "Sergt", "Sgt",  "Sr",  "St",   "Supt", "Univ",   "Vol",  "Vols",
    "Vs",   "cf",  "ch",   "e.g", "ed",   "fig",  "i.e",   "no",   "p",   "pp",   "viz",  "vol",    "vs"};

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_ascii_letter(char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

// Closing quotes and brackets after the end of a sentence. ASCII, U+2019, U+201D, U+00BB.
constexpr std::string_view kClosing[] = {"\"", "'", ")", "]", "\xE2\x80\x99", "\xE2\x80\x9D", "\xC2\xBB"};

/// Whether the word that ends at `end`, where a point stands, is an abbreviation.
bool is_abbreviation(std::string_view text, std::size_t end) {
  std::size_t begin = end;
  while (begin > 0 && (is_ascii_letter(text[begin - 1]) || text[begin - 1] == '.') && end - begin < 12) --begin;
  const std::string_view word = text.substr(begin, end - begin);
  if (word.empty()) return false;
  const bool is_initial = word.size() == 1 ? word[0] >= 'A' && word[0] <= 'Z' && word[0] != 'I'
                                           : word.size() >= 3 && word[word.size() - 2] == '.' && word.back() >= 'A' &&
                                                 word.back() <= 'Z';  // U.S
  return is_initial || std::ranges::find(kAbbreviations, word) != std::end(kAbbreviations);
}

/// A capital, a digit, a quote or an opening bracket.
bool can_begin(std::string_view text) {
  const char c = text[0];
  if ((c & 0x80) == 0)
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '"' || c == '\'' || c == '(' || c == '[';
  utf8proc_int32_t character = 0;
  if (utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(text.size()), &character) <= 0)
    return false;  // the text ends within it
  switch (utf8proc_category(character)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PS:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool begins_sentence(std::string_view text, std::size_t at) {
  if (at == 0 || at >= text.size() || !is_ascii_space(text[at - 1]) || is_ascii_space(text[at])) return false;
  std::size_t end = at, line_ends = 0;
  for (; end > 0 && is_ascii_space(text[end - 1]); --end) line_ends += text[end - 1] == '\n' ? 1 : 0;
  if (end == 0) return false;  // white space at the beginning of the text
  if (line_ends >= 2) return true;
  if (!can_begin(text.substr(at))) return false;
  bool has_closed = false;
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view closing : kClosing) {
      if (!text.substr(0, end).ends_with(closing)) continue;
      end -= closing.size();
      more = has_closed = true;
    }
  }
  if (end == 0) return false;
  const char mark = text[end - 1];
  if (mark == '!' || mark == '?') return true;
  return mark == '.' && (has_closed || !is_abbreviation(text, end - 1));
}

std::size_t next_sentence(std::string_view text, std::size_t from) {
  for (std::size_t at = std::max<std::size_t>(from, 1); at < text.size(); ++at)
    if (is_ascii_space(text[at - 1]) && begins_sentence(text, at)) return at;
  return text.size();
}

}  // namespace megalith::data
