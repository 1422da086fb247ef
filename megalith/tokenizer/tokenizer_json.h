#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "megalith/io/fs.h"
#include "megalith/tokenizer/split_pattern.h"

namespace megalith::tokenizer {

struct WordPieceVocabulary;

/// A token as written in a vocabulary file.
struct TokenEntry {
  std::string spelling;
  std::uint64_t id = 0;
  std::size_t line = 0;     ///< its line in the file, or its number among the tokens
  bool added = false;       ///< added to the vocabulary of merges; written in plain text
  bool normalized = false;  ///< of a literal: recognised after normalisation
};

/// Byte-level BPE in a tokenizer.json of the tokenizers library.
struct TokenizerJson {
  std::vector<TokenEntry> tokens;
  std::vector<TokenEntry> literals;  ///< added tokens that are not special, recognised in every text
  std::vector<std::string> merges;   ///< "LEFT RIGHT", by rank
  std::vector<SplitRule> splits;     ///< one after the other; none: the text is one piece
  bool compose = false;              ///< NFC
  bool ignore_merges = false;
};

// Both functions throw InputError "[FILE] model.dropout = 0.1: ..." for a member with another type or an unknown name.
// They also throw it for a value that would change ids in a way that this program does not support. null counts as
// missing. Tokens of a post-processor are not added by Tokenizer::encode(): callers get them from special().

TokenizerJson read_tokenizer_json(io::Fs& fs, const io::Path& file);

/// Reads BERT's WordPiece.
WordPieceVocabulary read_wordpiece_json(io::Fs& fs, const io::Path& file);

}  // namespace megalith::tokenizer
