#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "megalith/io/fs.h"
#include "megalith/tokenizer/split_pattern.h"

namespace megalith::tokenizer {

struct WordPieceVocabulary;

/// A token as a vocabulary file spells it.
struct TokenEntry {
  std::string spelling;
  std::uint64_t id = 0;
  std::size_t line = 0;     ///< where it stands in the file, or among the file's tokens
  bool added = false;       ///< beside the vocabulary that merges make; spelt as it is
  bool normalized = false;  ///< of a literal: looked for in the text after normalisation
};

/// What a tokenizer.json of the tokenizers library says of byte-level BPE.
struct TokenizerJson {
  std::vector<TokenEntry> tokens;
  std::vector<TokenEntry> literals;  ///< added tokens that are not special: a text gets them wherever it spells them
  std::vector<std::string> merges;   ///< "LEFT RIGHT", by rank
  std::vector<SplitRule> splits;     ///< one after the other; none: the text is one piece
  bool compose = false;              ///< NFC
  bool ignore_merges = false;
};

// Both functions throw InputError "[FILE] model.dropout = 0.1: ..." for a member by which ids would come out otherwise
// than this program makes them, of another type, or of a name that they do not know. null is as if it were not there.
// Tokens that a post-processor would add are not added by Tokenizer::encode(): who wants them asks for special().

TokenizerJson read_tokenizer_json(io::Fs& fs, const io::Path& file);

/// Of BERT's WordPiece.
WordPieceVocabulary read_wordpiece_json(io::Fs& fs, const io::Path& file);

}  // namespace megalith::tokenizer
