#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "megalith/io/fs.h"
#include "megalith/tasks/task.h"
#include "megalith/tasks/task_figures.h"

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

/// A report on a task: files, counts and figures, by name and in this order.
struct TaskReport {
  struct File {
    std::string use, path, checksum;  ///< checksum: empty for a folder
  };
  /// The model that made the predictions, and how it ran.
  struct Model {
    std::string checkpoint, digest, precision, device, grid;
    Index batch = 1;
    double seconds = 0;  ///< of all passes
    Index tokens = 0;    ///< that they read, without padding
    double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
  };
  tasks::Task task = tasks::Task::mnli;
  std::vector<File> files = {};
  std::optional<Model> model = {};
  tasks::Figures counts = {}, results = {};
};
/// Lines of a name and a value, or one JSON object; with the line end.
std::string task_report(const TaskReport& report, bool is_json);

}  // namespace megalith::apps
