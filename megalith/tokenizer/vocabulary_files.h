#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/io/fs.h"

namespace megalith::tokenizer {

/// A file of a vocabulary, unchanged, with its name in the transformers library.
struct VocabularyFile {
  std::string name, text;
};
/// Shared, as every rank thread has them and GPT-2's are 1.5 MB.
using VocabularyFiles = std::shared_ptr<const std::vector<VocabularyFile>>;

/// Whether a folder has files of a vocabulary.
bool has_vocabulary(io::Fs& fs, const io::Path& vocab_dir);

/// The names that make_tokenizer() looks for, for messages: "vocab.txt or tokenizer.json".
std::string_view vocabulary_file_names(std::string_view tokenizer);

/// The files that make_tokenizer(tokenizer, vocab_dir) reads: vocab.json and merges.txt, vocab.txt, or tokenizer.json;
/// none for "byte". A folder with only these makes the same tokenizer. Throws InputError if one is missing, and
/// IoError.
VocabularyFiles read_vocabulary_files(io::Fs& fs, std::string_view tokenizer, const io::Path& vocab_dir);

}  // namespace megalith::tokenizer
