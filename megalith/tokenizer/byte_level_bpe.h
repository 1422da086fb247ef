#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megalith/tokenizer/bpe_vocabulary.h"
#include "megalith/tokenizer/pre_tokenizer.h"
#include "megalith/tokenizer/scratch_pool.h"
#include "megalith/tokenizer/tokenizer.h"
#include "megalith/tokenizer/word_cache.h"

namespace megalith::tokenizer {

/// Applies merges to one word: lowest rank first, leftmost first among equals. Time is n log n in the bytes of the
/// word, so a word of a megabyte does not stop a run. Buffers are kept between words. One thread at a time.
class WordMerger {
 public:
  /// Appends the ids of `word` (not empty, below 4 GiB) to `ids`. merge_long_word() takes less memory.
  void merge(const BpeVocabulary& vocabulary, std::string_view word, std::vector<std::int32_t>& ids);

 private:
  struct Symbol {
    std::int32_t id;               // -1 once merged into the symbol on its left
    std::uint32_t previous, next;  // kNone at the ends
  };
  struct Candidate {
    std::int32_t rank, merged;
    std::uint32_t left;              // index of the left symbol
    std::int32_t left_id, right_id;  // the symbols when it was found; stale if they have changed
  };
  void offer(const BpeVocabulary& vocabulary, std::uint32_t left);

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;  // lowest (rank, left) first
};

/// Byte-level BPE as in GPT-2: PreTokenizer cuts, WordMerger merges.
class ByteLevelBpe final : public Tokenizer {
 public:
  /// Throws InputError, whose text is the rule alone, if a split pattern breaks one.
  explicit ByteLevelBpe(BpeVocabulary vocabulary, std::string name = "gpt2");
  ~ByteLevelBpe() override;

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::size_t next_cut(std::string_view text, std::size_t from) const override;
  std::unique_ptr<TextCutter> make_cutter() const override;
  void encode_cut(const CutText& cut, std::vector<std::int32_t>& ids) const override;
  std::string_view token_bytes(std::int32_t id) const override {
    return vocabulary_.tokens[static_cast<std::size_t>(id)];
  }
  Index vocab_size() const override { return static_cast<Index>(vocabulary_.tokens.size()); }
  std::int32_t end_of_document() const override { return vocabulary_.end_of_document; }
  std::optional<std::int32_t> special(Special which) const override;
  /// True for a token with leading white space and for an added token. The first word of a text has neither.
  bool starts_word(std::int32_t id) const override;
  std::vector<std::int32_t> added_tokens() const override;
  std::string_view name() const override { return name_; }
  std::uint64_t content_hash() const override { return vocabulary_.content_hash; }
  std::string unicode_version() const override { return PreTokenizer::unicode_version(); }

 private:
  struct Scratch;
  class Cutter;
  void encode_words(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  bool knows_cuts() const;

  std::string name_;
  BpeVocabulary vocabulary_;
  PreTokenizer pre_tokenizer_;
  std::unordered_map<std::string_view, std::int32_t> whole_words_;  // for ignore_merges
  mutable ScratchPool<Scratch> pool_;
  mutable std::mutex long_word_;  // one at a time, so that memory does not grow with the number of threads
};

}  // namespace megalith::tokenizer
