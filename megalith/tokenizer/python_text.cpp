#include "megalith/tokenizer/python_text.h"

#include <algorithm>
#include <array>

#include <utf8proc.h>

#include "megalith/base/utf8.h"
#include "megalith/tokenizer/unicode_text.h"

namespace megalith::tokenizer {
namespace {

utf8proc_category_t python_category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

/// The Unicode property Cased.
bool is_cased(char32_t c) {
  const utf8proc_category_t category = python_category(c);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT ||
         utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0 ||
         utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0;
}

/// The Unicode property Case_Ignorable: some categories, and the marks that words may hold (Word_Break MidLetter,
/// MidNumLet and Single_Quote).
bool is_case_ignorable(char32_t c) {
  constexpr char32_t kWithinWords[] = {0x27,   0x2E,   0x3A,   0xB7,   0x387,  0x55F,  0x5F4,  0x2018, 0x2019,
                                       0x2024, 0x2027, 0xFE13, 0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
  switch (python_category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return std::ranges::find(kWithinWords, c) != std::end(kWithinWords);
  }
}

constexpr char32_t kCapitalSigma = 0x3A3, kSigma = 0x3C3, kFinalSigma = 0x3C2;

/// Whether a capital sigma ends a word. Source: Unicode Standard, table 3-17, Final_Sigma.
bool is_final_sigma(const std::u32string& text, std::size_t at) {
  std::size_t before = at, after = at + 1;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_python_lower(const std::u32string& text, std::size_t at, std::u32string& lower) {
  if (text[at] == kCapitalSigma)
    lower.push_back(is_final_sigma(text, at) ? kFinalSigma : kSigma);
  else
    append_lower(text[at], lower);
}

std::u32string title_of_character(char32_t c) {
  constexpr std::array<std::u32string_view, 7> kLigatures = {U"Ff", U"Fi", U"Fl", U"Ffi", U"Ffl", U"St", U"St"};
  if (c == 0xDF) return U"Ss";
  if (c >= 0xFB00 && c <= 0xFB06) return std::u32string(kLigatures[c - 0xFB00]);
  return {static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)))};
}

std::u32string characters_of(std::string_view text) {
  std::u32string characters;
  for (std::size_t at = 0; at < text.size();) characters.push_back(next_character(text, at));
  return characters;
}

}  // namespace

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0x2028 || c == 0x2029 ||
         (c >= 0x80 && python_category(c) == UTF8PROC_CATEGORY_ZS);
}

std::u32string python_lower(const std::u32string& text) {
  std::u32string lower;
  lower.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) append_python_lower(text, i, lower);
  return lower;
}

std::string_view python_rstrip(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!is_python_space(next_character(text, at))) end = at;
  }
  return text.substr(0, end);
}

std::string_view python_strip(std::string_view text) {
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size() && is_python_space(next_character(text, at));) begin = at;
  return python_rstrip(text.substr(begin));
}

std::string python_capitalize(std::string_view text) {
  const std::u32string characters = characters_of(text);
  std::u32string changed;
  if (!characters.empty()) changed = title_of_character(characters.front());
  for (std::size_t i = 1; i < characters.size(); ++i) append_python_lower(characters, i, changed);
  std::string capitalized;
  for (const char32_t c : changed) append_utf8(c, capitalized);
  return capitalized;
}

std::size_t python_length(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace megalith::tokenizer
