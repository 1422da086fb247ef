#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "megalith/io/fs.h"

namespace megalith::data {

/// A token as a vocabulary file spells it.
struct TokenEntry {
  std::string spelling;
  std::uint64_t id = 0;
  std::size_t line = 0;  ///< where it stands in the file, or among the file's tokens
  bool added = false;    ///< beside the vocabulary that merges make
};

/// What a tokenizer.json of the tokenizers library says.
struct TokenizerJson {
  std::vector<TokenEntry> tokens;
  std::vector<std::string> merges;  ///< "LEFT RIGHT", by rank
};

/// Reads one that encodes as GPT-2 does. Throws InputError "[FILE] model.dropout = 0.1: ..." for a member by which ids
/// would come out otherwise: null and empty ones are as if they were not there.
TokenizerJson read_tokenizer_json(io::Fs& fs, const io::Path& file);

}  // namespace megalith::data
