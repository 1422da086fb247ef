#pragma once
#include <string>
#include <vector>

#include "megalith/data/corpus_reader.h"
#include "megalith/data/tokenizer_trainer.h"
#include "megalith/io/fs.h"

namespace megalith::data {

/// The files that a tokenizer is trained on.
struct TrainingText {
  std::vector<io::Path> inputs;
  std::string key = "text";
  CorpusReader::Options reading{};
  int threads = 1;  ///< the files are the same for any number
};

/// train_tokenizer() on the text of files. Throws ConfigError naming every setting that breaks a rule, InputError
/// naming file and line.
TrainedTokenizer train_tokenizer(io::Fs& fs, const TrainingText& text, const TrainerOptions& options);

}  // namespace megalith::data
