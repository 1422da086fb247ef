#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/data/bpe_vocabulary.h"
#include "megalith/data/pre_tokenizer.h"
#include "megalith/data/tokenizer.h"

namespace megalith::data {

/// Applies merges to one word: lowest rank first, leftmost first among equals. n log n in the word's bytes, so a word
/// of a megabyte is no way to stop a run. Buffers are kept between words; one thread at a time.
class WordMerger {
 public:
  /// Appends the ids of `word` (not empty) to `ids`.
  void merge(const BpeVocabulary& vocabulary, std::string_view word, std::vector<std::int32_t>& ids);

 private:
  struct Symbol {
    std::int32_t id;               // -1 once merged into the symbol on its left
    std::uint32_t previous, next;  // kNone at the ends
  };
  struct Candidate {
    std::int32_t rank, merged;
    std::uint32_t left;              // index of the left symbol
    std::int32_t left_id, right_id;  // what stood there when it was found; stale when that has changed
  };
  void offer(const BpeVocabulary& vocabulary, std::uint32_t left);

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;  // lowest (rank, left) in front
};

/// The ids of short words met before, so that most words of a text are one look-up: 2^14 entries, each at the place its
/// hash gives, the newer word wins. 512 KiB.
class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 15;  // bytes
  struct Entry {
    std::uint64_t word[2] = {0, 0};          // the bytes, zero-filled, and the length in the last byte
    std::int32_t ids[4] = {-1, -1, -1, -1};  // -1 behind the last
  };
  WordCache() : entries_(std::size_t{1} << 14) {}
  /// The entry for a word of 1..kLongestWord bytes, and whether it holds that word.
  Entry& at(std::string_view word, bool& found);

 private:
  std::vector<Entry> entries_;
};

/// GPT-2's tokenizer: PreTokenizer cuts, WordMerger merges.
class ByteLevelBpe final : public Tokenizer {
 public:
  explicit ByteLevelBpe(BpeVocabulary vocabulary);
  ~ByteLevelBpe() override;

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::size_t next_cut(std::string_view text, std::size_t from) const override;
  std::string_view token_bytes(std::int32_t id) const override {
    return vocabulary_.tokens[static_cast<std::size_t>(id)];
  }
  Index vocab_size() const override { return static_cast<Index>(vocabulary_.tokens.size()); }
  std::int32_t end_of_document() const override { return vocabulary_.end_of_document; }
  std::string_view name() const override { return "gpt2"; }
  std::uint64_t content_hash() const override { return vocabulary_.content_hash; }
  std::string unicode_version() const override { return PreTokenizer::unicode_version(); }

 private:
  struct Scratch;
  class Borrowed;

  BpeVocabulary vocabulary_;
  PreTokenizer pre_tokenizer_;
  // What a call of encode works with. One for each thread that is inside encode at the same time; kept for the next.
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> free_;
};

}  // namespace megalith::data
