#pragma once
#include <memory>
#include <string>

#include "megalith/data/corpus_reader.h"
#include "megalith/data/data_config.h"
#include "megalith/eval/choice_data.h"
#include "megalith/eval/masked_samples.h"
#include "megalith/io/fs.h"

namespace megalith::apps {

/// The options of an evaluation on the command line.
struct EvalTask {
  eval::Task task = eval::Task::loss;
  std::string data;
  Index window = 1, stride = 1;
  std::uint64_t max_line = data::kDefaultMaxLine;
  eval::ChoiceOptions choice = {};  ///< of Task::choice
};

/// A file of a task, read and cut into passages.
struct EvalData {
  eval::EvalSet set;     ///< of masked language models the counts and warnings alone
  std::string checksum;  ///< XXH3-128 of the unpacked text; for Parquet, of the file; HeldOutSamples: their fingerprint
  /// Other files, by their use.
  using File = eval::ChoiceData::File;
  std::vector<File> more_files = {};
  std::shared_ptr<const eval::HeldOutSamples> held_out = nullptr;  ///< of a masked language model
};

/// Reads a file (gzip, zstd and xz are unpacked). `loss` takes a text, JSON lines with "text" (by the name of the
/// file), or the column "text" of Parquet, and keeps the ids only. Other tasks keep the whole file, which max_line
/// bounds. Throws InputError with all problems.
EvalData read_eval_data(io::Fs& fs, const EvalTask& task, const tokenizer::Tokenizer& tokenizer);

/// Reads a file as data.valid of a masked language model: a text, JSON lines or Parquet, which is cut into sentences,
/// or the prefix of a token file of `data build --sentences`. Throws InputError, ConfigError.
EvalData read_held_out(io::Fs& fs, const EvalTask& task, const tokenizer::Tokenizer& tokenizer,
                       const data::BertMaking& making);

}  // namespace megalith::apps
