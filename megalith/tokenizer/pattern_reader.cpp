#include "megalith/tokenizer/pattern_reader.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"

namespace megalith::tokenizer {
namespace {

bool is_hex(char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }

char32_t code_of(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  char32_t code = character.size() == 1 ? byte(0) : byte(0) & (0x7Fu >> character.size());
  for (std::size_t i = 1; i < character.size(); ++i) code = (code << 6) | (byte(i) & 0x3Fu);
  return code;
}

PatternReader::Literal literal_of(char32_t code, std::string_view hex) { return {code, str("\\x{", hex, '}')}; }

std::string hex(int code) {
  std::string text;
  for (int shift = 4; shift >= 0; shift -= 4) text += "0123456789ABCDEF"[(code >> shift) & 15];
  return text;
}

}  // namespace

[[noreturn]] void refuse_pattern(std::string_view part, std::string_view why) {
  throw InputError(str("must not hold ", part, ": ", why));
}

bool folds_to_several(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0xDF, 0xDF},   {0x130, 0x130}, {0x149, 0x149},   {0x1F0, 0x1F0},   {0x2BC, 0x2BE},
      {0x300, 0x3FF}, {0x531, 0x587}, {0x1E96, 0x1E9E}, {0x1F00, 0x1FFF}, {0xFB00, 0xFB17}};
  return std::ranges::any_of(kRanges, [&](const auto& range) { return c >= range.first && c <= range.second; });
}

PatternReader::Literal PatternReader::take_character() {
  if (at_end()) throw InputError("must not end before a character");
  const std::size_t size = utf8_front(rest()).length;
  Literal found{code_of(rest().substr(0, size)), std::string(rest().substr(0, size))};
  at_ += size;
  return found;
}

std::optional<PatternReader::Literal> PatternReader::escaped_character(Within within) {
  const bool in_class = within == Within::brackets;
  if (rest().size() < 2) throw InputError("must not end with a backslash");
  const char c = rest()[1];
  constexpr std::string_view kNamed = "tnrf";
  constexpr std::string_view kMeant = "sSdDwWhHpPkgbBAzZGKRXNOyY";
  constexpr std::string_view kMeantInClass = "sSdDwWhHpP";
  if (kNamed.find(c) != kNowhere) {
    const Literal found{U"\t\n\r\f"[kNamed.find(c)], std::string(rest().substr(0, 2))};
    at_ += 2;
    return found;
  }
  if (c == 'v' || c == 'a' || c == 'e' || (c == 'b' && in_class)) {
    at_ += 2;
    return c == 'v'   ? Literal{0x0B, "\\x0B"}
           : c == 'a' ? literal_of(7, "7")
           : c == 'e' ? literal_of(0x1B, "1B")
                      : literal_of(8, "8");
  }
  if (c == 'x' || c == 'u') return hex_character(c);
  if (c == '0' || (in_class && is_octal(c))) return octal_character();
  if (c == 'c' || c == 'C' || c == 'M') {
    if (c != 'c' || rest().size() < 3 || !is_letter(rest()[2]))
      refuse_pattern(rest().substr(0, 3), "control characters are written \\cA or \\x{1}");
    const int code = rest()[2] & 0x1F;
    at_ += 3;
    return literal_of(static_cast<char32_t>(code), hex(code));
  }
  if (!in_class && is_digit(c)) return std::nullopt;
  if ((in_class ? kMeantInClass : kMeant).find(c) != kNowhere) return std::nullopt;
  ++at_;
  Literal found = take_character();
  if (found.code < 0x80 && !is_letter(c) && !is_digit(c) && c != '_' && c > ' ') found.text.insert(0, 1, '\\');
  if (found.text == " ") found.text = "\\ ";
  return found;
}

PatternReader::Literal PatternReader::octal_character() {
  std::size_t size = 1;
  while (size < 4 && size < rest().size() && is_octal(rest()[size])) ++size;
  const int code = std::stoi(std::string(rest().substr(1, size - 1)), nullptr, 8);
  if (code > 0x7F) refuse_pattern(rest().substr(0, size), "it is a byte, no character");
  at_ += size;
  return literal_of(static_cast<char32_t>(code), hex(code));
}

PatternReader::Literal PatternReader::hex_character(char letter) {
  const std::string_view shown = rest().substr(0, 4);
  const auto fail = [&] { refuse_pattern(shown, "characters are written \\x{HHHH}, \\xHH or \\uHHHH"); };
  const bool in_braces = letter == 'x' && rest().substr(2).starts_with("{");
  const std::size_t begin = in_braces ? 3 : 2;
  std::size_t size = 0;
  const std::size_t max_size = in_braces ? 8 : letter == 'x' ? 2 : 4;
  while (size < max_size && begin + size < rest().size() && is_hex(rest()[begin + size])) ++size;
  const std::string_view digits = rest().substr(begin, size);
  const bool is_closed = !in_braces || rest().substr(begin + size).starts_with("}");
  if (digits.empty() || !is_closed || (letter == 'u' && size != 4)) fail();
  const auto code = static_cast<char32_t>(std::stoul(std::string(digits), nullptr, 16));
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) refuse_pattern(shown, "no character has this number");
  if (letter == 'x' && !in_braces && code >= 0x80) return character_of_bytes();
  at_ += begin + size + (in_braces ? 1 : 0);
  return literal_of(code, digits);
}

PatternReader::Literal PatternReader::character_of_bytes() {
  const std::string shown(rest().substr(0, 4));
  std::string bytes;
  do {
    if (!next_is("\\x") || rest().size() < 4 || !is_hex(rest()[2]) || !is_hex(rest()[3]))
      refuse_pattern(shown, "it is a byte, no character");
    bytes += static_cast<char>(std::stoi(std::string(rest().substr(2, 2)), nullptr, 16));
    at_ += 4;
  } while (incomplete_utf8_tail(bytes) > 0);
  if (!is_utf8(bytes)) refuse_pattern(shown, "it is a byte, no character");
  return {code_of(bytes), bytes};
}

}  // namespace megalith::tokenizer
