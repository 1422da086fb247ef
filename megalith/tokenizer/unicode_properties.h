#pragma once
#include <string>
#include <string_view>

namespace megalith::tokenizer {

/// The property White_Space, within brackets of PCRE2. With PCRE2_UCP, \s would also match U+180E, which is no white
/// space since Unicode 6.3.
inline constexpr std::string_view kWhiteSpace = R"(\t-\r\x{85}\p{Z})";
/// All other characters.
inline constexpr std::string_view kNoWhiteSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027})"
    R"(\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";

/// A set of characters as in Oniguruma 6.9.10 (tokenizers 0.23.3).
struct PropertyClass {
  std::string items;         ///< for the brackets of PCRE2; empty: the name is unknown
  bool is_negative = false;  ///< all other characters
};

/// \p{NAME} and [:NAME:]: general categories, some binary properties, POSIX's names, and scripts. Any other name
/// counts as a script: PCRE2 refuses unknown ones.
PropertyClass property_class(std::string_view name);

/// \w within brackets. Elsewhere it also takes U+00B2, B3, B9, BC, BD and BE.
const std::string& word_items();

}  // namespace megalith::tokenizer
