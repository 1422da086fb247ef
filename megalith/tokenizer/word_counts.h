#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

/// Words and how often they occur, in the order in which they were first added. Bounded: where the table would take
/// more than its memory, the rarest words go.
class WordCounts {
 public:
  struct Word {
    std::string_view text;
    std::uint64_t count;
  };

  WordCounts() : WordCounts(std::uint64_t{1} << 40) {}
  /// At least 1 MiB.
  explicit WordCounts(std::uint64_t most_bytes) : most_bytes_(most_bytes), slots_(1024, kNone) {}

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

  /// Words that went because of the memory, and their occurrences; a word that came again is counted again.
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

  std::uint64_t most_bytes_;
  std::string text_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  // indices of entries_ by hash: a power of two, at most half full
  std::uint64_t dropped_words_ = 0, dropped_occurrences_ = 0;
};

}  // namespace megalith::tokenizer
