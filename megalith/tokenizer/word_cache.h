#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

/// The ids of recent short words, so that most words of a text are one look-up. It has 2^14 entries (512 KiB). A
/// word's hash selects its entry, and a newer word replaces an older one.
class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 15;  // bytes
  struct Entry {
    std::uint64_t word[2] = {0, 0};          // the bytes, zero-filled, and the length in the last byte
    std::int32_t ids[4] = {-1, -1, -1, -1};  // -1 after the last
  };
  WordCache() : entries_(std::size_t{1} << 14) {}
  /// The entry for a word of 1..kLongestWord bytes, and whether it holds that word.
  Entry& at(std::string_view word, bool& found);

  /// Appends the ids of `word`; encode() appends them if they are not known. Words of more than kLongestWord bytes or
  /// 4 ids are encoded each time: they are rare.
  template <class Encode>
  void append(std::string_view word, std::vector<std::int32_t>& ids, const Encode& encode) {
    if (word.size() > kLongestWord) return encode();
    bool found = false;
    Entry& entry = at(word, found);
    if (found && entry.ids[0] >= 0) {
      for (const std::int32_t id : entry.ids) {
        if (id < 0) break;
        ids.push_back(id);
      }
      return;
    }
    const std::size_t before = ids.size();
    encode();
    const std::size_t count = ids.size() - before;
    if (count > std::size(entry.ids)) return;
    for (std::size_t i = 0; i < count; ++i) entry.ids[i] = ids[before + i];
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace megalith::tokenizer
