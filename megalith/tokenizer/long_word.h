#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "megalith/tokenizer/bpe_vocabulary.h"

namespace megalith::tokenizer {

/// WordMerger for a word of a megabyte or more. It makes the same ids in half of the memory: 17 bytes per byte of the
/// word, which are freed at the end. It is slower, as each pair is looked up once more when it comes first. Throws
/// IoError if the system has less memory free (require_memory()).
void merge_long_word(const BpeVocabulary& vocabulary, std::string_view word, std::vector<std::int32_t>& ids);

}  // namespace megalith::tokenizer
