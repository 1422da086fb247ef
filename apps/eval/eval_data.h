#pragma once
#include <string>

#include "megalith/data/corpus_reader.h"
#include "megalith/eval/figures.h"
#include "megalith/io/fs.h"

namespace megalith::apps {

/// The options of an evaluation on the command line.
struct EvalTask {
  eval::Task task = eval::Task::loss;
  std::string data;
  Index window = 1, stride = 1;
  std::uint64_t max_line = data::kDefaultMaxLine;
};

/// A file of a task, read and cut into passages.
struct EvalData {
  eval::EvalSet set;
  std::string checksum;  ///< XXH3-128 of the unpacked text; for Parquet, of the file
};

/// Reads a file (gzip, zstd and xz are unpacked). `loss` takes a text, JSON lines with "text" (by the name of the
/// file), or the column "text" of Parquet, and keeps the ids only. Other tasks keep the whole file, which max_line
/// bounds. Throws InputError with all problems.
EvalData read_eval_data(io::Fs& fs, const EvalTask& task, const tokenizer::Tokenizer& tokenizer);

}  // namespace megalith::apps
