#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace megalith {

/// What the bytes at the front of a text are: a character, the start of one, or neither.
/// Source: Unicode Standard, table 3-7.
struct Utf8Front {
  std::size_t good = 0;    ///< bytes that fit together: the whole character, or its part that is there
  std::size_t length = 1;  ///< bytes that the character would have; the front is a character when good == length
};
/// `text` is not empty.
Utf8Front utf8_front(std::string_view text);

/// Bytes of the longest prefix that is well-formed UTF-8 (shortest forms, no surrogates, at most U+10FFFF): the size of
/// the text when all of it is, else the offset of the first bad byte.
std::size_t valid_utf8_prefix(std::string_view text);

inline bool is_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

/// Each maximal ill-formed part becomes one U+FFFD, as the Unicode Standard recommends (chapter 3.9).
std::string repair_utf8(std::string_view text);

/// Bytes at the end of the text that are the beginning of a character whose other bytes are still to come: 0 to 3.
std::size_t incomplete_utf8_tail(std::string_view text);

/// The Unicode property White_Space of the character that ends just before `end`. The text is well-formed UTF-8.
bool ends_in_white_space(std::string_view text, std::size_t end);

/// Appends a character, which is no surrogate.
void append_utf8(char32_t c, std::string& text);

/// U+FFFD, the replacement character, in UTF-8.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace megalith
