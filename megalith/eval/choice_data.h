#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "megalith/eval/choice_set.h"
#include "megalith/eval/choice_task.h"
#include "megalith/io/fs.h"

namespace megalith::eval {

/// The files of a multiple-choice task (gzip, zstd and xz are unpacked), which are held as a whole. MMLU's are one file
/// per subject: `data` may be the folder of them, and options.shots_data then is the folder of the examples, with
/// SUBJECT_dev.csv for each SUBJECT_test.csv.
struct ChoiceFiles {
  std::string data;
  ChoiceOptions options = {};
  std::uint64_t max_bytes = 0;  ///< of a file
  /// What names `data` and raises `max_bytes`, for errors.
  std::string_view data_setting = "--data", limit_setting = "--max-line";
};

/// What was read, and what identifies it.
struct ChoiceData {
  EvalSet set;
  std::string checksum;  ///< XXH3-128 of the unpacked data; of a folder, of the names and checksums of its files
  /// Other files, by their use; a folder is one.
  struct File {
    std::string use, path, checksum;
  };
  std::vector<File> more_files = {};
};

/// Reads the files and makes the set for passes of `window` inputs; problems of lines are those of the set. Throws
/// InputError for a file that is missing or too long.
ChoiceData read_choice_data(io::Fs& fs, const ChoiceFiles& files, const tokenizer::Tokenizer& tokenizer, Index window);

}  // namespace megalith::eval
