#include "megalith/tasks/answer_text.h"

#include <algorithm>

#include <utf8proc.h>

#include "megalith/base/utf8.h"
#include "megalith/tokenizer/unicode_text.h"

namespace megalith::tasks {
namespace {

utf8proc_category_t category_of(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

/// str.isspace() of Python: the bidirectional classes WS, B and S, and category Zs.
bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0x2028 || c == 0x2029 ||
         (c >= 0x80 && category_of(c) == UTF8PROC_CATEGORY_ZS);
}

/// string.punctuation of Python.
bool is_ascii_punctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) || (c >= 0x7B && c <= 0x7E);
}

/// \w of Python's re, but for the underscore, which is punctuation.
bool is_word_character(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  switch (category_of(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

/// The Unicode property Cased.
bool is_cased(char32_t c) {
  const utf8proc_category_t category = category_of(c);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT ||
         utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0 ||
         utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0;
}

/// The Unicode property Case_Ignorable: some categories, and the marks that words may hold (Word_Break MidLetter,
/// MidNumLet and Single_Quote).
bool is_case_ignorable(char32_t c) {
  constexpr char32_t kWithinWords[] = {0x27,   0x2E,   0x3A,   0xB7,   0x387,  0x55F,  0x5F4,  0x2018, 0x2019,
                                       0x2024, 0x2027, 0xFE13, 0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
  switch (category_of(c)) {
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

std::u32string lower_case(const std::u32string& text) {
  std::u32string lower;
  lower.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == kCapitalSigma)
      lower.push_back(is_final_sigma(text, i) ? kFinalSigma : kSigma);
    else
      tokenizer::append_lower(text[i], lower);
  }
  return lower;
}

bool is_article(std::u32string_view word) { return word == U"a" || word == U"an" || word == U"the"; }

}  // namespace

std::string normalized_answer(std::string_view text) {
  std::u32string characters;
  for (std::size_t at = 0; at < text.size();) characters.push_back(tokenizer::next_character(text, at));
  characters = lower_case(characters);
  std::erase_if(characters, is_ascii_punctuation);
  std::string normal;
  bool is_after_space = false;
  const auto add = [&](char32_t c) {
    if (is_after_space && !normal.empty()) normal += ' ';
    is_after_space = false;
    append_utf8(c, normal);
  };
  for (std::size_t begin = 0; begin < characters.size();) {
    std::size_t end = begin;
    while (end < characters.size() && is_word_character(characters[end])) ++end;
    if (end > begin) {
      const auto word = std::u32string_view(characters).substr(begin, end - begin);
      if (is_article(word))
        is_after_space = true;
      else
        std::ranges::for_each(word, add);
      begin = end;
      continue;
    }
    if (is_python_space(characters[begin]))
      is_after_space = true;
    else
      add(characters[begin]);
    ++begin;
  }
  return normal;
}

std::vector<std::string_view> words_of(std::string_view normalized) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin < normalized.size();) {
    const std::size_t end = std::min(normalized.find(' ', begin), normalized.size());
    words.push_back(normalized.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace megalith::tasks
