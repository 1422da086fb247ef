#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/io/fs.h"

namespace megalith::data {

/// Merges by their pair of token ids: an open hash table, because looking up pairs is what BPE spends its time on.
class MergeTable {
 public:
  struct Merge {
    std::int32_t rank = -1;    ///< lower ranks merge first
    std::int32_t merged = -1;  ///< the token that the pair becomes
  };
  explicit MergeTable(std::size_t num_merges);
  /// False when the pair is already there.
  bool insert(std::int32_t left, std::int32_t right, Merge merge);
  /// rank < 0 when the pair does not merge.
  Merge find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t pair = pair_of(left, right);
    for (std::size_t i = slot_of(pair);; i = (i + 1) & mask_) {
      if (slots_[i].pair == pair) return slots_[i].merge;
      if (slots_[i].pair == kFree) return {};
    }
  }

 private:
  struct Slot {
    std::uint64_t pair = kFree;
    Merge merge;
  };
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};  // no pair: ids are not negative
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t pair) const {
    return static_cast<std::size_t>((pair * 0x9e3779b97f4a7c15ULL) >> 32) & mask_;
  }
  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t mask_ = 0;
};

/// A byte-level BPE vocabulary, checked: ids are 0..N-1, each byte has a token, and every merge joins tokens that are
/// bytes or made by an earlier merge, into a token of the vocabulary.
struct BpeVocabulary {
  std::vector<std::string> tokens;           ///< the bytes of each id
  std::array<std::int32_t, 256> byte_ids{};  ///< the id of each single byte
  MergeTable merges{0};
  std::int32_t end_of_document = -1;  ///< <|endoftext|>
  std::uint64_t content_hash = 0;
  std::string warning;  ///< that merges seem to be missing; else empty
};

/// The files that hold a vocabulary; `merges` is empty where `tokens` is a tokenizer.json, which has both.
struct VocabularyPaths {
  io::Path tokens, merges;
};
/// Those that load_bpe_vocabulary() reads. Throws InputError where one is missing.
VocabularyPaths vocabulary_paths(io::Fs& fs, const io::Path& vocab_dir);

/// Reads vocab_dir/encoder.json (or vocab.json) and vocab_dir/vocab.bpe (or merges.txt); where neither of the first two
/// is there, vocab_dir/tokenizer.json of the tokenizers library, which must describe GPT-2's way of encoding.
/// Throws InputError "[FILE] line N, ..." naming the rule that is broken, IoError.
BpeVocabulary load_bpe_vocabulary(io::Fs& fs, const io::Path& vocab_dir);

}  // namespace megalith::data
