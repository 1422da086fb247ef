#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"
#include "megalith/tokenizer/piece_trie.h"
#include "megalith/tokenizer/split_pattern.h"

namespace megalith::tokenizer {

/// Merges by their pair of token ids. An open hash table, because BPE spends its time on looking up pairs.
class MergeTable {
 public:
  struct Merge {
    std::int32_t rank = -1;    ///< lower ranks merge first
    std::int32_t merged = -1;  ///< the token that the pair becomes
  };
  explicit MergeTable(std::size_t num_merges);
  /// False if the table has the pair already.
  bool insert(std::int32_t left, std::int32_t right, Merge merge);
  /// rank < 0 if the pair does not merge.
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

/// Tokens that are recognised wherever a text has their bytes, before any other step.
class LiteralTokens {
 public:
  void add(std::string_view bytes, std::int32_t id);
  bool hold_white_space() const { return hold_white_space_; }
  bool empty() const { return first_bytes_.empty(); }
  /// Calls use_id() for each token in the text and use_text() for the text between them, in order. The leftmost token
  /// comes first; of several at one place the longest is taken.
  template <class UseId, class UseText>
  void sections(std::string_view text, const UseId& use_id, const UseText& use_text) const {
    sections_of_part(text, true, use_id, [&](std::string_view part, bool) {
      if (!part.empty()) use_text(part);
    });
  }
  /// The same for a text that comes in parts. use_text(part, ends) gets whether the section ends there. Returns how
  /// much of `text` was used: the caller passes the rest again, before the next part. `ends` marks the last part.
  template <class UseId, class UseText>
  std::size_t sections_of_part(std::string_view text, bool ends, const UseId& use_id, const UseText& use_text) const {
    std::size_t begin = 0;
    std::size_t at = text.find_first_of(first_bytes_);
    while (at < text.size()) {
      if (!ends && text.size() - at < longest_) break;  // a token that begins here may end in the next part
      const PieceTrie::Found token = trie_.longest(PieceTrie::kWord, text.substr(at));
      const std::size_t after = at + std::max<std::size_t>(token.size, 1);
      if (token.id >= 0) {
        use_text(text.substr(begin, at - begin), true);
        use_id(token.id);
        begin = after;
      }
      at = text.find_first_of(first_bytes_, after);
    }
    const std::size_t known = ends ? text.size() : std::min(at, text.size());
    use_text(text.substr(begin, known - begin), ends);
    return known;
  }

 private:
  std::string first_bytes_;  // empty: there are no tokens
  std::size_t longest_ = 0;  // bytes of the longest token
  bool hold_white_space_ = false;
  PieceTrie trie_;
};

/// A checked byte-level BPE vocabulary: each byte has a token, and every merge joins two tokens into a token of the
/// vocabulary.
struct BpeVocabulary {
  std::vector<std::string> tokens;  ///< the bytes of each id; "" for an id without a token
  std::vector<bool> is_added;       ///< by id: tokens that merges do not make
  std::vector<SplitRule> splits = {gpt2_split()};
  bool compose = false;                      ///< the text is normalised to NFC first
  bool ignore_merges = false;                ///< a word that is a token becomes that token, without merges
  LiteralTokens literals;                    ///< recognised before the text is composed
  LiteralTokens composed_literals;           ///< recognised after that
  std::array<std::int32_t, 256> byte_ids{};  ///< the id of each single byte
  MergeTable merges{0};
  std::int32_t end_of_document = -1;  ///< <|endoftext|>
  std::uint64_t content_hash = 0;
  std::string warning;  ///< if merges seem to be missing; else empty
};

/// The files of a vocabulary. `merges` is empty if `tokens` is a tokenizer.json, which has both.
struct VocabularyPaths {
  io::Path tokens, merges;
};
/// The files that load_bpe_vocabulary() reads. Throws InputError if one is missing.
VocabularyPaths vocabulary_paths(io::Fs& fs, const io::Path& vocab_dir);

/// Reads vocab_dir/tokenizer.json of the tokenizers library. If there is none, it reads vocab_dir/encoder.json (or
/// vocab.json) and vocab_dir/vocab.bpe (or merges.txt). Those do not describe how text is cut, so it is cut as for
/// GPT-2.
/// Throws InputError "[FILE] line N, ..." naming the broken rule, and IoError.
BpeVocabulary load_bpe_vocabulary(io::Fs& fs, const io::Path& vocab_dir);

/// Calls use(merge, line) for each merge, "LEFT RIGHT", of a vocab.bpe or merges.txt. A first line that begins with
/// "#version" and an empty last line are skipped. `name` is for errors.
void each_merge(std::span<const std::byte> file, std::string_view name,
                const std::function<void(std::string_view, std::uint64_t)>& use);

/// The size of load_bpe_vocabulary()'s tokens, which is the highest id plus one. Merges are not read. Throws the same
/// errors for the files that it reads.
Index count_bpe_ids(io::Fs& fs, const io::Path& vocab_dir);

/// The files write each byte as a visible character. Bytes that are visible in Latin-1 stand for themselves, the
/// others for U+0100 onwards, in order. Source: openai/gpt-2, encoder.py, bytes_to_unicode.
std::string byte_spelling(unsigned char byte);

}  // namespace megalith::tokenizer
