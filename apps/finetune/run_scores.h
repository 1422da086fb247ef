#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/io/fs.h"
#include "megalith/report/finetune_report.h"
#include "megalith/tasks/task_set.h"

namespace megalith::apps {

/// The score of a run's last checkpoint on a file.
struct RunScore {
  FileScore score;
  std::string digest;               ///< of the checkpoint
  std::string inference;            ///< how it ran: "fp32 on cpu, tp 1 pp 1 dp 1, batch 4"
  std::vector<float> numbers = {};  ///< as TaskSet::predict() reads them; empty: not kept
};

enum class Numbers : std::uint8_t { kept, left_out };

/// Where a run's score on a file lies: FOLDER/NAME.json, and beside it the numbers, FOLDER/NAME.logits, 4 bytes each
/// (f32, little-endian), [samples, numbers]. NAME.json is written last.
struct ScorePlace {
  io::Path folder;
  std::string name;  ///< "dev_1"

  io::Path json() const { return folder / (name + ".json"); }
  io::Path logits() const { return folder / (name + ".logits"); }
};

/// Publishes a score of predictions for `set`.
void write_run_score(io::Fs& fs, const ScorePlace& place, const tasks::TaskSet& set, const RunScore& score);

/// The score that was written for the samples of `set`, with its numbers if they are to be kept. Nothing if it must be
/// computed: if it is not there, is of other samples or has no numbers, and, with a warning, if it was changed.
std::optional<RunScore> read_run_score(io::Fs& fs, const ScorePlace& place, const tasks::TaskSet& set, Numbers numbers);

}  // namespace megalith::apps
