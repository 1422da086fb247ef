#include "megalith/tokenizer/word_cache.h"

#include <cstring>

#include "megalith/base/hash.h"

namespace megalith::tokenizer {

WordCache::Entry& WordCache::at(std::string_view word, bool& found) {
  std::uint64_t key[2] = {0, 0};
  std::memcpy(key, word.data(), word.size());
  key[1] |= std::uint64_t{word.size()} << 56;
  const std::uint64_t hash = mix64(key[0] ^ (key[1] * 0x9e3779b97f4a7c15ULL));
  Entry& entry = entries_[hash & (entries_.size() - 1)];
  found = entry.word[0] == key[0] && entry.word[1] == key[1];
  if (!found) entry = {.word = {key[0], key[1]}};
  return entry;
}

}  // namespace megalith::tokenizer
