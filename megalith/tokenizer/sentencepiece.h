#pragma once
#include <memory>

#include "megalith/io/fs.h"
#include "megalith/tokenizer/tokenizer.h"
#include "megalith/tokenizer/tokenizer_trainer.h"

// load and train call the sentencepiece library. In a program that was built without it they throw ConfigError, which
// names what to install.
namespace megalith::tokenizer {

/// vocab_dir/tokenizer.model, else the only file *.model in that folder. Throws InputError if there is none.
io::Path sentencepiece_path(io::Fs& fs, const io::Path& vocab_dir);

/// A model with unigram or BPE pieces. Its text is never cut for threads: no place is known where cutting keeps the
/// ids. Throws InputError naming the file.
std::shared_ptr<const Tokenizer> load_sentencepiece(io::Fs& fs, const io::Path& vocab_dir);

/// tokenizer.model with byte fallback, <unk> <s> </s> <pad> first. A sentence is a line, cut at spaces to 4,096 bytes.
/// The library holds all sentences in memory: text beyond an eighth of options.memory_bytes is left out, and counted as
/// dropped occurrences of lines. It always runs 16 threads, as its result depends on their number.
TrainedTokenizer train_sentencepiece(const TrainerOptions& options, const CountWords& count);

}  // namespace megalith::tokenizer
