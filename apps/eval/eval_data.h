#pragma once
#include <string>

#include "megalith/data/corpus_reader.h"
#include "megalith/eval/figures.h"
#include "megalith/io/fs.h"

namespace megalith::apps {

/// What an evaluation asks, as the command line says it.
struct EvalTask {
  eval::Task task = eval::Task::loss;
  std::string data;
  Index window = 1, stride = 1;
  std::uint64_t max_line = data::kDefaultMaxLine;
};

/// A file of a task, read and cut into passages.
struct EvalData {
  eval::EvalSet set;
  std::string checksum;  ///< XXH3-128 of the file's text, unpacked; of Parquet, of the file
};

/// Reads a file (gzip, zstd and xz are unpacked). `loss` takes a text, JSON lines with "text" by the file's name, or
/// the column "text" of Parquet, and keeps the ids alone; other tasks hold their file as a whole, which max_line
/// bounds. Throws InputError with all that is wrong with it.
EvalData read_eval_data(io::Fs& fs, const EvalTask& task, const tokenizer::Tokenizer& tokenizer);

}  // namespace megalith::apps
