#pragma once
#include <string>
#include <vector>

#include "megalith/data/corpus_reader.h"
#include "megalith/io/fs.h"
#include "megalith/tokenizer/tokenizer_trainer.h"

namespace megalith::data {

/// The files that a tokenizer is trained on.
struct TrainingText {
  std::vector<io::Path> inputs;
  std::string key = "text";
  CorpusReader::Options reading{};
  int threads = 1;  ///< the result is the same for any number
};

/// train_tokenizer() on the text of files. Throws ConfigError naming every setting that breaks a rule, InputError
/// naming file and line.
tokenizer::TrainedTokenizer train_tokenizer(io::Fs& fs, const TrainingText& text,
                                            const tokenizer::TrainerOptions& options);

}  // namespace megalith::data
