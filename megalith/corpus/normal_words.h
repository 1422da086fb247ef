#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::corpus {

/// The words of a text: consecutive letters and digits (Unicode categories L and N), each character in lower case.
/// Lower case is the simple mapping, so the final sigma is a sigma. Everything else separates words. It holds the words
/// of one text at a time and keeps its memory.
class NormalWords {
 public:
  /// `text` is UTF-8.
  void read(std::string_view text);

  std::size_t size() const { return ends_.size(); }
  /// 64-bit hashes of the words, in order.
  const std::vector<std::uint64_t>& hashes() const { return hashes_; }
  /// Words first .. first + count - 1, joined by single spaces. count > 0.
  std::string_view joined(std::size_t first, std::size_t count) const {
    const std::size_t begin = first == 0 ? 0 : ends_[first - 1] + 1;
    return std::string_view(text_).substr(begin, ends_[first + count - 1] - begin);
  }

 private:
  std::string text_;  // the words with one space after each; longer than the used part
  std::vector<std::size_t> ends_;
  std::vector<std::uint64_t> hashes_;
};

/// Appends the hash of every `count` consecutive words, or of all words when there are fewer. So a text without words
/// has one shingle, of no words. count > 0.
void append_shingles(const std::vector<std::uint64_t>& word_hashes, std::size_t count,
                     std::vector<std::uint64_t>& shingles);

/// Appends the hash of every `count` consecutive words; nothing when there are fewer.
void append_ngrams(const std::vector<std::uint64_t>& word_hashes, std::size_t count,
                   std::vector<std::uint64_t>& ngrams);

/// The number of elements that two ascending sequences without repeats share, and the number in either.
struct Overlap {
  std::uint64_t shared = 0, either = 0;
  bool operator==(const Overlap&) const = default;
};
Overlap overlap(const std::uint64_t* a, std::size_t a_size, const std::uint64_t* b, std::size_t b_size);

}  // namespace megalith::corpus
