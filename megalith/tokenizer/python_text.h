#pragma once
#include <string>
#include <string_view>

namespace megalith::tokenizer {

// Methods of Python's str, for protocols that are defined by programs in Python. All texts must be UTF-8.

/// str.isspace() of one character: the bidirectional classes WS, B and S, and category Zs.
bool is_python_space(char32_t c);

/// str.lower(): Unicode's full mapping, with U+03C2 for a sigma that ends a word.
std::u32string python_lower(const std::u32string& text);

/// str.strip() and str.rstrip().
std::string_view python_strip(std::string_view text);
std::string_view python_rstrip(std::string_view text);

/// str.capitalize(): the first character in title case, the others in lower case. Of the characters whose title case is
/// several letters it knows U+00DF and the Latin ligatures U+FB00 to U+FB06; others of them stay as they are.
std::string python_capitalize(std::string_view text);

/// len(): characters, not bytes.
std::size_t python_length(std::string_view text);

}  // namespace megalith::tokenizer
