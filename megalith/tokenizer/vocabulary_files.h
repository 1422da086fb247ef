#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/io/fs.h"

namespace megalith::tokenizer {

/// A file of a vocabulary, as it stands, under the name that the transformers library gives it.
struct VocabularyFile {
  std::string name, text;
};
/// Shared: a rank thread each has them, and GPT-2's are 1.5 MB.
using VocabularyFiles = std::shared_ptr<const std::vector<VocabularyFile>>;

/// Whether a folder holds files of a vocabulary.
bool has_vocabulary(io::Fs& fs, const io::Path& vocab_dir);

/// What make_tokenizer() looks for, for messages: "vocab.txt or tokenizer.json".
std::string_view vocabulary_file_names(std::string_view tokenizer);

/// The files that make_tokenizer(tokenizer, vocab_dir) reads: vocab.json and merges.txt, vocab.txt, or tokenizer.json;
/// none of "byte". A folder with these alone gives the same tokenizer. Throws InputError where one is missing, IoError.
VocabularyFiles read_vocabulary_files(io::Fs& fs, std::string_view tokenizer, const io::Path& vocab_dir);

}  // namespace megalith::tokenizer
