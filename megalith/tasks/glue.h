#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"
#include "megalith/tasks/task.h"

namespace megalith::tasks {

/// Two sentences and their class.
struct PairExample {
  std::string id;
  std::string first, second;
  int label = -1;  ///< -1: the file has no labels
};

struct PairSet {
  std::vector<PairExample> examples;  ///< one or more
  Index left_out = 0;                 ///< rows that are broken in GLUE's own files
  Index undecided = 0;                ///< those of them whose label is "-"

  /// "3 of 25 rows are left out: 1 with another number of columns than the first line, 2 with the label "-", on which
  /// annotators did not agree"; empty: none is.
  std::string left_out_text() const;
};

enum class Labels : std::uint8_t {
  required,
  optional  ///< a file without labels is read, too: GLUE's test sets have none
};

/// Reads MNLI or QQP, packed or not.
/// - JSON lines (.jsonl, .ndjson): sentence1, sentence2 (mnli also premise, hypothesis; qqp question1, question2), and
///   label (mnli also gold_label; qqp is_duplicate), a text, of qqp also a number. index or id is the example's id.
/// - Any other name: GLUE's .tsv with its official columns by name, without quoting. mnli: index, sentence1, sentence2,
///   gold_label. qqp: id, question1, question2, is_duplicate.
/// An example without an id has the number of its row, from 0.
/// Rows with another number of columns than the first line, and rows of mnli whose label is "-" (annotators did not
/// agree), are counted and left out. Throws InputError with all other problems: missing columns, unknown labels,
/// duplicate ids, text that is not UTF-8.
/// `setting`: the key or option that names the file, for messages.
/// Source: Wang et al. 2019, arXiv:1804.07461.
PairSet read_pairs(io::Fs& fs, const io::Path& file, Task task, Labels labels, std::size_t max_line,
                   std::string_view setting = kDataOption);

/// Examples whose predicted class is theirs. Each must have a prediction.
template <class ClassOf>
Correct count_correct(const PairSet& set, const ClassOf& class_of) {
  Correct correct{.total = std::ssize(set.examples)};
  for (const PairExample& example : set.examples) correct.correct += class_of(example) == example.label ? 1 : 0;
  return correct;
}

}  // namespace megalith::tasks
