#include "megalith/base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace megalith {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t i) { return static_cast<std::uint8_t>(text[i]); }

bool in(std::uint8_t byte, int low, int high) { return byte >= low && byte <= high; }

}  // namespace

Utf8Front utf8_front(std::string_view text) {
  const std::uint8_t first = byte_at(text, 0);
  if (first < 0x80) return {1, 1};
  if (!in(first, 0xC2, 0xF4)) return {0, 1};
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The second byte's range is narrower where a longer form, a surrogate or more than U+10FFFF would follow.
  const int low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const int high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  std::size_t good = 1;
  while (good < length && good < text.size() &&
         in(byte_at(text, good), good == 1 ? low : 0x80, good == 1 ? high : 0xBF))
    ++good;
  return {good, length};
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t word = 0;  // eight ASCII bytes at a time: most text is ASCII
    if (text.size() - at >= sizeof word) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080ULL) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const Utf8Front front = utf8_front(text.substr(at));
    if (front.good != front.length) return at;
    at += front.length;
  }
  return at;
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t good = valid_utf8_prefix(text);
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) break;
    out.append(kReplacement);
    text.remove_prefix(std::max<std::size_t>(1, utf8_front(text).good));
  }
  return out;
}

std::size_t incomplete_utf8_tail(std::string_view text) {
  for (std::size_t tail = 1; tail <= std::min<std::size_t>(3, text.size()); ++tail) {
    const std::string_view end = text.substr(text.size() - tail);
    if (in(byte_at(end, 0), 0x80, 0xBF)) continue;  // the character began earlier
    const Utf8Front front = utf8_front(end);
    return front.good == tail && front.good < front.length ? tail : 0;
  }
  return 0;
}

bool ends_in_white_space(std::string_view text, std::size_t end) {
  if (end == 0) return false;
  const std::uint8_t last = byte_at(text, end - 1);
  if (last < 0x80) return last == ' ' || in(last, '\t', '\r');
  const auto ends_with = [&](std::string_view character) { return text.substr(0, end).ends_with(character); };
  if (ends_with("\xC2\x85") || ends_with("\xC2\xA0") || ends_with("\xE1\x9A\x80") || ends_with("\xE3\x80\x80"))
    return true;  // U+0085, U+00A0, U+1680, U+3000
  if (end < 3 || byte_at(text, end - 3) != 0xE2) return false;
  const std::uint8_t middle = byte_at(text, end - 2);  // U+2000..U+200A, U+2028, U+2029, U+202F and U+205F
  return middle == 0x80 ? in(last, 0x80, 0x8A) || in(last, 0xA8, 0xA9) || last == 0xAF : middle == 0x81 && last == 0x9F;
}

void append_utf8(char32_t c, std::string& text) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

}  // namespace megalith
