#include "megalith/corpus/normal_words.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <utf8proc.h>

#include "megalith/base/hash.h"

namespace megalith::corpus {
namespace {

constexpr unsigned char kBetween = 0, kNotAscii = 0xFF;

/// The lower case of an ASCII byte within a word; kBetween when it is in none.
constexpr std::array<unsigned char, 256> lower_bytes() {
  std::array<unsigned char, 256> table{};
  for (unsigned c = 0; c < 256; ++c) {
    if (c >= 0x80) table[c] = kNotAscii;
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z')) table[c] = static_cast<unsigned char>(c);
    if (c >= 'A' && c <= 'Z') table[c] = static_cast<unsigned char>(c - 'A' + 'a');
  }
  return table;
}
constexpr std::array<unsigned char, 256> kLower = lower_bytes();

/// The character in lower case; -1 for one that is in no word.
utf8proc_int32_t word_character(utf8proc_int32_t c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return utf8proc_tolower(c);
    default:
      return -1;
  }
}

/// Hashes eight bytes at a time. `bytes` may be read 7 bytes past its end.
std::uint64_t hash_of(const char* bytes, std::size_t size) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15ULL;
  std::uint64_t hash = size * kOdd, word = 0;
  for (; size > 8; size -= 8, bytes += 8) {
    std::memcpy(&word, bytes, 8);
    hash = (hash ^ word) * kOdd;
    hash ^= hash >> 32;
  }
  std::memcpy(&word, bytes, 8);
  if (size < 8) word &= (std::uint64_t{1} << 8 * size) - 1;
  return mix64(hash ^ word);
}

/// Calls use(hash) for every `count` consecutive words. The hash is a rolling polynomial of the words' hashes, mixed.
template <class Use>
void for_each_run(const std::vector<std::uint64_t>& words, std::size_t count, const Use& use) {
  constexpr std::uint64_t kBase = 0xd6e8feb86659fd93ULL;  // odd: no word loses bits
  std::uint64_t leaving = 1;                              // kBase ^ count
  for (std::size_t i = 0; i < count; ++i) leaving *= kBase;
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    hash = hash * kBase + words[i];
    if (i >= count) hash -= words[i - count] * leaving;
    if (i + 1 >= count) use(mix64(hash + count));
  }
}

}  // namespace

void NormalWords::read(std::string_view text) {
  ends_.clear();
  hashes_.clear();
  // In lower case a character takes at most half as many bytes more (U+023A: 2 to 3). A space follows each word.
  const std::size_t max_size = 2 * text.size() + 16;
  if (text_.size() < max_size) text_.resize(max_size);
  char* out = text_.data();
  const char* word = out;
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = at + text.size();
  const auto end_word = [&] {
    if (out == word) return;
    hashes_.push_back(hash_of(word, static_cast<std::size_t>(out - word)));
    ends_.push_back(static_cast<std::size_t>(out - text_.data()));
    *out++ = ' ';
    word = out;
  };
  while (at < end) {
    const unsigned char lower = kLower[*at];
    if (lower == kBetween) {
      end_word();
      ++at;
    } else if (lower != kNotAscii) {
      *out++ = static_cast<char>(lower);
      ++at;
    } else {
      utf8proc_int32_t character = 0;
      const utf8proc_ssize_t size = utf8proc_iterate(at, end - at, &character);
      at += size > 0 ? size : 1;
      character = size > 0 ? word_character(character) : -1;
      if (character < 0)
        end_word();
      else
        out += utf8proc_encode_char(character, reinterpret_cast<utf8proc_uint8_t*>(out));
    }
  }
  end_word();
}

void append_shingles(const std::vector<std::uint64_t>& word_hashes, std::size_t count,
                     std::vector<std::uint64_t>& shingles) {
  if (word_hashes.empty()) return shingles.push_back(mix64(0));
  for_each_run(word_hashes, std::min(count, word_hashes.size()), [&](std::uint64_t hash) { shingles.push_back(hash); });
}

void append_ngrams(const std::vector<std::uint64_t>& word_hashes, std::size_t count,
                   std::vector<std::uint64_t>& ngrams) {
  for_each_run(word_hashes, count, [&](std::uint64_t hash) { ngrams.push_back(hash); });
}

Overlap overlap(const std::uint64_t* a, std::size_t a_size, const std::uint64_t* b, std::size_t b_size) {
  const std::uint64_t *const a_end = a + a_size, *const b_end = b + b_size;
  std::uint64_t shared = 0;
  while (a < a_end && b < b_end) {  // no branch depends on the elements, because the smaller one cannot be predicted
    const std::uint64_t x = *a, y = *b;
    shared += x == y;
    a += x <= y;
    b += y <= x;
  }
  return {shared, a_size + b_size - shared};
}

}  // namespace megalith::corpus
