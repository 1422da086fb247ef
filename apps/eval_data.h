#pragma once
#include <string>

#include "megalith/eval/figures.h"
#include "megalith/io/fs.h"

namespace megalith::apps {

/// What an evaluation asks, as the command line says it.
struct EvalTask {
  eval::Task task = eval::Task::loss;
  std::string data;
  Index window = 1, stride = 1;
};

/// A file of a task, read and cut into passages.
struct EvalData {
  eval::EvalSet set;
  std::string checksum;  ///< XXH3-128 of the file's text, unpacked
};

/// Reads a file (gzip, zstd and xz are unpacked). `loss` takes a text, or JSON lines with "text" by the file's name.
/// Throws InputError with all that is wrong with it. Memory: the text and its ids.
EvalData read_eval_data(io::Fs& fs, const EvalTask& task, const data::Tokenizer& tokenizer);

}  // namespace megalith::apps
