#pragma once
#include <span>

#include "megalith/base/types.h"
#include "megalith/data/tokenizer.h"
#include "megalith/data/vocabulary_files.h"

namespace megalith::convert {

/// Writes into an existing folder, synced, what AutoTokenizer.from_pretrained() of the transformers library reads: the
/// vocabulary's files and tokenizer_config.json; for the byte tokenizer a tokenizer.json without merges whose ids are
/// the bytes. The library's ids are then those of `tokenizer`, but that it takes the end of document's name in a text
/// for that token. `seq_len`: positions of the model. Throws IoError.
void export_hf_tokenizer(io::Fs& fs, const io::Path& folder, const data::Tokenizer& tokenizer,
                         std::span<const data::VocabularyFile> files, Index seq_len);

}  // namespace megalith::convert
