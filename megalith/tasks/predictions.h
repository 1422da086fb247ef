#pragma once
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"
#include "megalith/tasks/task.h"

namespace megalith::tasks {

// Files of predictions in their official forms, packed or not. All throw InputError with all problems.

/// Answers by the id of their question.
using TextPredictions = std::unordered_map<std::string, std::string>;
/// SQuAD: one object {ID: TEXT}.
TextPredictions read_text_predictions(io::Fs& fs, const io::Path& file);

/// SQuAD 2.0: one object {ID: NUMBER}, in the order of the file, which the official script uses for equal numbers. A
/// higher number: the question rather has no answer.
using NoAnswerScores = std::vector<std::pair<std::string, double>>;
NoAnswerScores read_no_answer_scores(io::Fs& fs, const io::Path& file);

/// Numbers of classes by the id of their example.
using ClassPredictions = std::unordered_map<std::string, int>;
/// MNLI, QQP: lines of index, a tab and the name of a class. A first line of "index" and "prediction" is left out.
ClassPredictions read_class_predictions(io::Fs& fs, const io::Path& file, Task task, std::size_t max_line);

/// Throws InputError if ids of the data, `ids`, have no prediction: their number and the first three.
/// `has(id)`: whether an id has one. `data_file` has the ids; `what`: "prediction".
template <class Has>
void require_predictions(std::string_view file, std::string_view data_file, std::span<const std::string> ids,
                         const Has& has, std::string_view what = "prediction");

/// The text of that error.
std::string lacking_ids(std::string_view file, std::string_view data_file, std::span<const std::string> lacking,
                        std::size_t all, std::string_view what);

template <class Has>
void require_predictions(std::string_view file, std::string_view data_file, std::span<const std::string> ids,
                         const Has& has, std::string_view what) {
  std::vector<std::string> lacking;
  for (const std::string& id : ids)
    if (!has(id)) lacking.push_back(id);
  if (!lacking.empty()) throw InputError(lacking_ids(file, data_file, lacking, ids.size(), what));
}

}  // namespace megalith::tasks
