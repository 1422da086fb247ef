#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace megalith::data {

/// Bytes of the longest prefix that is well-formed UTF-8 (shortest forms, no surrogates, at most U+10FFFF): the size of
/// the text when all of it is, else the offset of the first bad byte.
/// Source: Unicode Standard, table 3-7.
std::size_t valid_utf8_prefix(std::string_view text);

/// Each maximal ill-formed part becomes one U+FFFD, as the Unicode Standard recommends (chapter 3.9).
std::string repair_utf8(std::string_view text);

/// Bytes at the end of the text that are the beginning of a character whose other bytes are still to come: 0 to 3.
std::size_t incomplete_utf8_tail(std::string_view text);

/// The Unicode property White_Space of the character that ends just before `end`. The text is well-formed UTF-8.
bool ends_in_white_space(std::string_view text, std::size_t end);

/// U+FFFD, the replacement character, in UTF-8.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace megalith::data
