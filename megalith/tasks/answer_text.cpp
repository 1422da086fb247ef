#include "megalith/tasks/answer_text.h"

#include <algorithm>

#include <utf8proc.h>

#include "megalith/base/utf8.h"
#include "megalith/tokenizer/python_text.h"
#include "megalith/tokenizer/unicode_text.h"

namespace megalith::tasks {
namespace {

utf8proc_category_t category_of(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

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

bool is_article(std::u32string_view word) { return word == U"a" || word == U"an" || word == U"the"; }

}  // namespace

std::string normalized_answer(std::string_view text) {
  std::u32string characters;
  for (std::size_t at = 0; at < text.size();) characters.push_back(tokenizer::next_character(text, at));
  characters = tokenizer::python_lower(characters);
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
    if (tokenizer::is_python_space(characters[begin]))
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
