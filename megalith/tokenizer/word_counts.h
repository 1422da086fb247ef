#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

/// Words and their counts, in the order in which they were first added. The memory is bounded: the rarest words are
/// dropped when the table would exceed it.
class WordCounts {
 public:
  struct Word {
    std::string_view text;
    std::uint64_t count;
  };

  WordCounts() : WordCounts(std::uint64_t{1} << 40) {}
  /// `max_bytes` is at least 1 MiB.
  explicit WordCounts(std::uint64_t max_bytes) : max_bytes_(max_bytes), slots_(1024, kNone) {}

  void add(std::string_view word, std::uint64_t count = 1);
  /// Adds those of `other` in their order.
  void add(const WordCounts& other) {
    for (std::size_t i = 0; i < other.size(); ++i) add(other[i].text, other[i].count);
  }
  void clear();

  std::size_t size() const { return entries_.size(); }
  Word operator[](std::size_t i) const {
    const Entry& entry = entries_[i];
    return {std::string_view(text_).substr(entry.begin, entry.size), entry.count};
  }

  /// Words that were dropped for lack of memory, and their occurrences. A word that comes again is counted again.
  std::uint64_t dropped_words() const { return dropped_words_; }
  std::uint64_t dropped_occurrences() const { return dropped_occurrences_; }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Entry {
    std::uint64_t begin, count;
    std::uint32_t size, hash;
  };
  std::uint64_t bytes() const { return text_.size() + entries_.size() * (sizeof(Entry) + 2 * sizeof(std::uint32_t)); }
  void drop_rarest();
  void rebuild(std::size_t num_slots);

  std::uint64_t max_bytes_;
  std::string text_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  // indices of entries_ by hash: a power of two, at most half full
  std::uint64_t dropped_words_ = 0, dropped_occurrences_ = 0;
};

}  // namespace megalith::tokenizer
