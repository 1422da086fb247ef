#include "megalith/tokenizer/unicode_text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <vector>

#include <utf8proc.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"

namespace megalith::tokenizer {
namespace {

struct CharacterRange {
  char32_t first, last;
};

// Characters that utf8proc 2.8 (Unicode 15.0) orders, decomposes or composes, and tokenizers 0.23.3 leaves. Each
// character was normalised by both, alone and after U+0345.
constexpr CharacterRange kLeftAlone[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}};

bool is_left_alone(char32_t c) {
  const CharacterRange* const found = std::ranges::upper_bound(kLeftAlone, c, {}, &CharacterRange::first);
  return found != std::begin(kLeftAlone) && c <= std::prev(found)->last;
}

int combining_class(char32_t c) {
  return is_left_alone(c) ? 0 : utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

}  // namespace

void append_decomposed(char32_t c, std::u32string& out) {
  if (c < 0xC0 || is_left_alone(c)) return out.push_back(c);
  std::array<utf8proc_int32_t, 16> parts{};  // the longest canonical decomposition has 4 characters
  int boundary = 0;
  const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                                                         UTF8PROC_DECOMPOSE, &boundary);
  if (count < 0 || count > static_cast<utf8proc_ssize_t>(parts.size()))
    throw InternalError(
        str("[unicode] character ", static_cast<std::uint32_t>(c), " was not decomposed: ", utf8proc_errmsg(count)));
  out.append(parts.begin(), parts.begin() + count);
}

void order_marks(std::u32string& text) {
  const auto is_mark = [](char32_t c) { return c >= 0x300 && combining_class(c) != 0; };
  for (auto begin = std::ranges::find_if(text, is_mark); begin != text.end();
       begin = std::find_if(begin, text.end(), is_mark)) {
    const auto end = std::find_if_not(begin, text.end(), is_mark);
    if (end - begin > 1)
      std::stable_sort(begin, end, [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

std::string_view composed(std::string_view text, std::string& out) {
  // Nothing below U+0300 changes.
  const auto is_high = [](char c) { return static_cast<unsigned char>(c) >= 0xCC; };
  if (std::ranges::none_of(text, is_high)) return text;
  std::u32string characters;
  for (std::size_t at = 0; at < text.size();) append_decomposed(next_character(text, at), characters);
  order_marks(characters);
  out.clear();
  std::vector<utf8proc_int32_t> part;
  const auto end_part = [&] {
    const utf8proc_ssize_t size =
        utf8proc_normalize_utf32(part.data(), static_cast<utf8proc_ssize_t>(part.size()),
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (size < 0) throw InternalError(str("[unicode] NFC of ", part.size(), " characters: ", utf8proc_errmsg(size)));
    for (utf8proc_ssize_t i = 0; i < size; ++i)
      append_utf8(static_cast<char32_t>(part[static_cast<std::size_t>(i)]), out);
    part.clear();
  };
  // utf8proc takes U+11A7, which precedes the first final consonant of Hangul, for one, and drops it.
  constexpr char32_t kBeforeFinals = 0x11A7;
  for (const char32_t c : characters) {
    if (is_left_alone(c) || c == kBeforeFinals) {
      end_part();
      append_utf8(c, out);
    } else {
      part.push_back(static_cast<utf8proc_int32_t>(c));
    }
  }
  end_part();
  return out;
}

void append_lower(char32_t c, std::u32string& out) {
  if (c == 0x130) {
    out.push_back('i');
    return out.push_back(0x307);
  }
  // Letters that are new since Unicode 15.0.
  struct NewLetters {
    char32_t first, last, lower;
  };
  constexpr NewLetters kNew[] = {{0x1C89, 0x1C89, 0x1C8A},   {0xA7CB, 0xA7CB, 0x264},  {0xA7CC, 0xA7CC, 0xA7CD},
                                 {0xA7CE, 0xA7CE, 0xA7CF},   {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5},
                                 {0xA7DA, 0xA7DA, 0xA7DB},   {0xA7DC, 0xA7DC, 0x19B},  {0x10D50, 0x10D65, 0x10D70},
                                 {0x16EA0, 0x16EB8, 0x16EBB}};
  if (c >= 0x1C89) {
    for (const NewLetters& letters : kNew)
      if (c >= letters.first && c <= letters.last) return out.push_back(letters.lower + (c - letters.first));
  }
  out.push_back(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

std::string unicode_tables_version() { return utf8proc_unicode_version(); }

}  // namespace megalith::tokenizer
