#pragma once
#include <memory>
#include <string>

#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"
#include "megalith/tokenizer/tokenizer.h"
#include "megalith/tokenizer/vocabulary_files.h"

namespace megalith::apps {

/// The folder of a vocabulary that ships with the program (gpt2, bert-uncased, bert-cased): share/megalith/gpt2 or
/// share/gpt2 in one of the folders above the program. So it is found for an installed program (PREFIX/bin) and in a
/// build folder. Throws ConfigError if there is none.
io::Path shipped_vocabulary(io::Fs& fs, std::string_view tokenizer);

/// The folder of a tokenizer's files: `vocab_dir`, or if that is empty the shipped one, if the tokenizer has files.
io::Path vocabulary_folder(io::Fs& fs, std::string_view tokenizer, const std::string& vocab_dir);

/// tokenizer::count_ids() with that folder: for config::resolve().
config::CountIds count_ids(io::Fs& fs);

/// tokenizer::make_tokenizer() with that folder.
std::shared_ptr<const tokenizer::Tokenizer> open_tokenizer(io::Fs& fs, std::string_view tokenizer,
                                                           const std::string& vocab_dir);

}  // namespace megalith::apps
