#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/corpus/normal_words.h"

namespace megalith::corpus {

/// The n-grams of test sets, each held once, and whether it was found. A hash gives the place, the words decide.
class NgramTable {
 public:
  explicit NgramTable(std::size_t count) : count_(count) {}

  /// Adds the n-grams of a document and appends a number for each, in order. Equal n-grams have the same number.
  void add(const NormalWords& document, std::vector<std::uint32_t>& numbers);
  /// Call it between the last add() and the first mark().
  void finish();
  /// Marks the held n-grams of a document. Any number of threads may call it at once, and the result does not depend on
  /// their order. `hashes` is memory that is reused from call to call.
  void mark(const NormalWords& document, std::vector<std::uint64_t>& hashes);

  bool is_found(std::uint32_t ngram) const { return found_[ngram] != 0; }
  std::size_t size() const { return ngrams_.size(); }

 private:
  struct Ngram {
    std::uint64_t hash = 0, begin = 0;
    std::uint32_t size = 0;
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  std::string_view text_of(const Ngram& ngram) const {
    return std::string_view(texts_).substr(ngram.begin, ngram.size);
  }
  std::size_t slot(std::uint64_t hash) const { return hash & (slots_.size() - 1); }
  void grow();
  void mark_held(std::uint64_t hash, std::string_view text);

  std::size_t count_;
  std::vector<Ngram> ngrams_;
  std::string texts_;                  // texts of the documents
  std::vector<std::uint32_t> slots_;   // numbers of n-grams by hash, open addressing; their number is a power of two
  std::vector<std::uint64_t> filter_;  // a bit per hash, 16 bits per n-gram: most of a training text's are not held
  std::uint64_t filter_mask_ = 0;
  std::vector<std::uint8_t> found_;
};

}  // namespace megalith::corpus
