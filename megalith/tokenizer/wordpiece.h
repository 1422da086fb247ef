#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/tokenizer/bert_text.h"
#include "megalith/tokenizer/piece_trie.h"
#include "megalith/tokenizer/scratch_pool.h"
#include "megalith/tokenizer/tokenizer.h"
#include "megalith/tokenizer/word_cache.h"

namespace megalith::tokenizer {

/// A checked WordPiece vocabulary: tokens are distinct, and [UNK] and [SEP] are among them.
struct WordPieceVocabulary {
  std::vector<std::string> tokens;   ///< by id, as in the file: "word", "##ing"; "" for an id without a token
  std::string unknown = "[UNK]";     ///< the token of a word that has no pieces
  std::string continuation = "##";   ///< before a piece that does not begin a word
  std::size_t max_characters = 100;  ///< a longer word is unknown
  BertTextOptions text;
};

/// Reads vocab_dir/vocab.txt, vocab_dir/NAME-vocab.txt or vocab_dir/tokenizer.json, the first that exists.
/// `name` is "bert-uncased" or "bert-cased". Throws InputError naming file, line or path.
std::shared_ptr<const Tokenizer> load_wordpiece(io::Fs& fs, std::string_view name, const io::Path& vocab_dir);
/// The file that load_wordpiece() reads. Throws InputError if there is none.
io::Path wordpiece_path(io::Fs& fs, std::string_view name, const io::Path& vocab_dir);

/// One token per line, the line's number from 0 its id. Throws InputError "[FILE] line N, ..." for an empty or repeated
/// token, text that is not UTF-8, a missing [UNK] or [SEP].
std::vector<std::string> read_vocab_txt(io::Fs& fs, const io::Path& file);

/// BERT's tokenizer: BertText cuts words, and each is read as the longest pieces from left to right.
/// Source: Devlin et al. 2018, arXiv:1810.04805; google-research/bert, tokenization.py, WordpieceTokenizer.
class WordPiece final : public Tokenizer {
 public:
  /// `name` is "bert-uncased" or the like. Errors name `file`.
  WordPiece(std::string name, const io::Path& file, WordPieceVocabulary vocabulary);

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::size_t next_cut(std::string_view text, std::size_t from) const override;
  /// " word" and "ing": decode() returns words with single spaces between them, not the original text.
  std::string_view token_bytes(std::int32_t id) const override { return shown_[static_cast<std::size_t>(id)]; }
  Index vocab_size() const override { return static_cast<Index>(shown_.size()); }
  std::int32_t end_of_document() const override { return end_of_document_; }
  std::optional<std::int32_t> special(Special which) const override;
  bool starts_word(std::int32_t id) const override;
  std::string_view name() const override { return name_; }
  std::uint64_t content_hash() const override { return content_hash_; }
  std::string unicode_version() const override;

 protected:
  bool text_gets_space() const override { return true; }

 private:
  struct Scratch {
    explicit Scratch(const BertTextOptions& options) : text(options) {}
    BertText text;
    WordCache cache;
  };
  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) const;

  std::string name_;
  WordPieceVocabulary vocabulary_;
  PieceTrie trie_;
  std::vector<std::string> shown_;
  std::int32_t unknown_ = -1, end_of_document_ = -1;
  std::uint64_t content_hash_ = 0;
  mutable ScratchPool<Scratch> pool_;
};

}  // namespace megalith::tokenizer
