#include "megalith/tokenizer/word_counts.h"

#include <algorithm>
#include <cstring>

#include "megalith/base/checked_growth.h"
#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"

namespace megalith::tokenizer {
namespace {

/// Eight bytes at a time.
std::uint32_t hash_of_word(std::string_view word) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15ULL;
  std::uint64_t hash = word.size() * kOdd, piece = 0;
  for (; word.size() > 8; word.remove_prefix(8)) {
    std::memcpy(&piece, word.data(), 8);
    hash = (hash ^ piece) * kOdd;
    hash ^= hash >> 32;
  }
  piece = 0;
  std::memcpy(&piece, word.data(), word.size());
  return static_cast<std::uint32_t>(mix64(hash ^ piece));
}

}  // namespace

void WordCounts::add(std::string_view word, std::uint64_t count) {
  if (word.size() >= kNone) throw InputError(str("[words] a word of ", word.size(), " bytes: must be below 4 GiB"));
  const std::uint32_t hash = hash_of_word(word);
  std::size_t slot = hash & (slots_.size() - 1);
  for (; slots_[slot] != kNone; slot = (slot + 1) & (slots_.size() - 1)) {
    Entry& entry = entries_[slots_[slot]];
    if (entry.hash == hash && std::string_view(text_).substr(entry.begin, entry.size) == word) {
      entry.count += count;
      return;
    }
  }
  constexpr std::string_view kWhat = "the table of words", kFix = "give it less by --memory";
  make_room(text_, word.size(), kWhat, kFix);
  make_room(entries_, 1, kWhat, kFix);
  slots_[slot] = static_cast<std::uint32_t>(entries_.size());
  entries_.push_back({text_.size(), count, static_cast<std::uint32_t>(word.size()), hash});
  text_ += word;
  if (bytes() > max_bytes_ || entries_.size() >= kNone - 1) drop_rarest();
  if (2 * entries_.size() > slots_.size()) rebuild(2 * slots_.size());
}

void WordCounts::clear() {
  text_.clear();
  entries_.clear();
  std::ranges::fill(slots_, kNone);
}

void WordCounts::rebuild(std::size_t num_slots) {
  slots_.assign(num_slots, kNone);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::size_t slot = entries_[i].hash & (num_slots - 1);
    while (slots_[slot] != kNone) slot = (slot + 1) & (num_slots - 1);
    slots_[slot] = static_cast<std::uint32_t>(i);
  }
}

/// Leaves at most three quarters of the memory in use. Words of one count are dropped together, the lowest first.
void WordCounts::drop_rarest() {
  const std::uint64_t wanted = max_bytes_ / 4 * 3;
  std::vector<std::uint64_t> counts;
  for (const Entry& entry : entries_) counts.push_back(entry.count);
  std::ranges::sort(counts);
  std::uint64_t left = bytes(), limit = 0;
  const std::uint64_t mean = left / entries_.size();
  for (std::size_t i = 0; i < counts.size() && left > wanted; ++i) {
    limit = counts[i];
    left -= std::min(left, mean);
  }
  std::string text;
  std::vector<Entry> kept;
  for (const Entry& entry : entries_) {
    if (entry.count <= limit) {
      ++dropped_words_;
      dropped_occurrences_ += entry.count;
      continue;
    }
    kept.push_back({text.size(), entry.count, entry.size, entry.hash});
    text.append(text_, entry.begin, entry.size);
  }
  text_.swap(text);
  entries_.swap(kept);
  rebuild(slots_.size());
}

}  // namespace megalith::tokenizer
