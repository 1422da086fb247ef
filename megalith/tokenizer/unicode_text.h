#pragma once
#include <string>
#include <string_view>

namespace megalith::tokenizer {

// Unicode's canonical forms as the tokenizers library computes them. Its tables are of Unicode 9.0. A character that
// only the tables of utf8proc have stays as it is, and nothing moves across it. All texts must be UTF-8.

/// The character at `at`; moves `at` to the next one.
inline char32_t next_character(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const auto tail = [&](std::size_t i) { return byte(i) & 0x3F; };
  const char32_t first = byte(0);
  char32_t c = first;
  std::size_t length = 1;
  if (first >= 0xF0) {
    c = (first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
    length = 4;
  } else if (first >= 0xE0) {
    c = (first & 0x0F) << 12 | tail(1) << 6 | tail(2);
    length = 3;
  } else if (first >= 0x80) {
    c = (first & 0x1F) << 6 | tail(1);
    length = 2;
  }
  at += length;
  return c;
}

/// Appends the canonical decomposition (NFD) of one character. Marks that follow are not sorted.
void append_decomposed(char32_t c, std::u32string& out);

/// Puts the marks of decomposed text in canonical order.
void order_marks(std::u32string& text);

/// Canonical composition (NFC). Returns `text` itself if it is composed already, else a view of `out`.
std::string_view composed(std::string_view text, std::string& out);

/// The lower-case mapping of one character by the Unicode 17 tables of Rust; two characters for U+0130.
void append_lower(char32_t c, std::u32string& out);

/// The version of the linked tables: "15.0.0".
std::string unicode_tables_version();

}  // namespace megalith::tokenizer
