#pragma once
#include <cstddef>
#include <string>

#include "megalith/io/fs.h"
#include "megalith/tasks/task.h"

namespace megalith::apps {

/// `eval --task TASK --data DATA --score FILE`: anyone's predictions against a file of a fine-tuning task, without a
/// model.
struct ScoreRequest {
  tasks::Task task = tasks::Task::mnli;
  std::string data, score, na_probs;
  std::size_t max_line = 0;
  bool is_json = false;
};

/// The report, with its line end: files with their checksums, counts and figures. Throws InputError for files that
/// break a rule, and for predictions that lack ids.
std::string score_predictions(io::Fs& fs, const ScoreRequest& request);

}  // namespace megalith::apps
