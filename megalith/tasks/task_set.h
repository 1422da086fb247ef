#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "megalith/base/types.h"
#include "megalith/tasks/pair_sample.h"
#include "megalith/tasks/task_figures.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::tasks {

/// How the samples of a task are made.
struct TaskSetConfig {
  Task task = Task::mnli;
  Index seq_len = 512;
  Index max_query = 128, doc_stride = 128;  ///< SquadWindowConfig, RaceSampleSize
  std::size_t max_line = std::size_t{16} << 20;
  std::string_view setting = kDataOption;  ///< the key or option that names the file, for messages
};

/// training: samples with a label only. scoring: all that predictions need.
enum class SampleUse : std::uint8_t { training, scoring };

/// One sample of n sequences, in memory of the caller.
struct TaskSample {
  std::span<std::int32_t> tokens, types;  ///< [n S]
  std::span<std::int32_t> lengths;        ///< [n]
  std::span<std::int32_t> labels;         ///< [1] class; of SQuAD [2] places of the answer's first and last token
};

/// Predictions in the structures of their official files, and the figures of a scored file.
struct TaskPredictions {
  ClassPredictions classes;  ///< of MNLI, QQP and RACE
  TextPredictions texts;     ///< of SQuAD
  NoAnswerScores no_answer;  ///< of SQuAD 2.0
};

/// The samples of a file of a task: pairs of sentences, windows of SQuAD, questions of RACE with a sequence for each
/// option. Any thread may read them. Memory: the file's texts, and 4 bytes per token.
class TaskSet {
 public:
  virtual ~TaskSet() = default;
  const TaskSetConfig& config() const { return config_; }
  virtual Index count() const = 0;
  /// Sequences of a sample.
  virtual Index sequences() const { return 1; }
  virtual Index labels() const { return 1; }
  /// Numbers of a sample by which a model chooses: of each class; of SQuAD start [S], then end [S].
  virtual Index numbers() const = 0;
  virtual void make(Index sample, const TaskSample& out) const = 0;

  /// From numbers [count(), numbers()]. For SampleUse::scoring.
  virtual TaskPredictions predict(std::span<const float> numbers) const = 0;
  virtual Figures figures(const TaskPredictions& predictions) const = 0;
  /// What the file holds, by name: "examples", "left_out", ...
  virtual Figures counts() const = 0;
  /// What of the file is in no sample, as "2 of 25 rows are left out: ..."; empty: nothing.
  virtual std::string left_out() const { return {}; }
  /// The official form of a file of predictions. MNLI, QQP: index<TAB>prediction; SQuAD: {ID: TEXT}; RACE: JSON lines.
  virtual std::string prediction_file(const TaskPredictions& predictions) const = 0;

  Index num_tokens() const { return num_tokens_; }            ///< without padding
  std::uint64_t fingerprint() const { return fingerprint_; }  ///< of all samples and labels

 protected:
  explicit TaskSet(const TaskSetConfig& config) : config_(config) {}
  friend std::unique_ptr<const TaskSet> open_task_set(io::Fs& fs, const io::Path& path, const TaskSetConfig& config,
                                                      const tokenizer::Tokenizer& tokenizer, SampleUse use);

 private:
  void identify();

  TaskSetConfig config_;
  Index num_tokens_ = 0;
  std::uint64_t fingerprint_ = 0;
};

/// Reads a file of the task (read_pairs, read_squad, read_race). Throws InputError as these do, and if no sample has a
/// label; ConfigError for a vocabulary without BERT's tokens, and for sizes that do not fit seq_len.
std::unique_ptr<const TaskSet> open_task_set(io::Fs& fs, const io::Path& path, const TaskSetConfig& config,
                                             const tokenizer::Tokenizer& tokenizer, SampleUse use);

}  // namespace megalith::tasks
