#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::corpus {

/// The words of a text: runs of letters and digits (Unicode categories L and N), each character in lower case (its
/// simple mapping, so the final sigma is a sigma). Everything else stands between words. Holds the words of one text at
/// a time and keeps its memory.
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
  std::string text_;  // the words with one space behind each; longer than what is used
  std::vector<std::size_t> ends_;
  std::vector<std::uint64_t> hashes_;
};

/// Appends the hash of every `count` consecutive words; of all words when there are fewer (so of a text without words
/// too: one shingle, of no words). count > 0.
void append_shingles(const std::vector<std::uint64_t>& word_hashes, std::size_t count,
                     std::vector<std::uint64_t>& shingles);

/// Appends the hash of every `count` consecutive words; nothing when there are fewer.
void append_ngrams(const std::vector<std::uint64_t>& word_hashes, std::size_t count,
                   std::vector<std::uint64_t>& ngrams);

/// How many elements two ascending sequences without repeats share, and how many there are in either.
struct Overlap {
  std::uint64_t shared = 0, either = 0;
  bool operator==(const Overlap&) const = default;
};
Overlap overlap(const std::uint64_t* a, std::size_t a_size, const std::uint64_t* b, std::size_t b_size);

}  // namespace megalith::corpus
