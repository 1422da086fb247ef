#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "megalith/eval/samples.h"
#include "megalith/tasks/task_set.h"

namespace megalith::apps {

/// The sequences of a task's samples as samples of an inference: sequence k of sample i has the number i *
/// set.sequences() + k. The set must outlive it. Keeps 4 bytes of each sequence.
class TaskSamples final : public eval::Samples {
 public:
  explicit TaskSamples(const tasks::TaskSet& set);

  Index count() const override { return std::ssize(lengths_); }
  eval::PassShape shape(Index sequence) const override;
  Index tokens(Index sequence) const override { return lengths_[static_cast<std::size_t>(sequence)]; }
  /// SQuAD: all tokens. Other tasks have results about whole sequences only.
  Index rows(Index sequence) const override { return has_spans() ? tokens(sequence) : 0; }
  void fill(Index sequence, const eval::SampleInputs& to) const override;

  /// MNLI, QQP: a logit of each class; RACE: one logit of a sequence; SQuAD: two of each token.
  std::vector<eval::AskedResult> asked() const;
  /// Writes the numbers of a sequence to their places in `all`, [set.count(), set.numbers()], as TaskSet::predict()
  /// reads them. Places of padding stay as they are.
  void put(Index sequence, const eval::SampleNumbers& found, std::span<float> all) const;

 private:
  bool has_spans() const { return tasks::classes_of(set_.config().task).empty(); }
  /// Calls use(sample) with a sample in memory of its own.
  template <class Use>
  void with_sample(Index sample, const Use& use) const;

  const tasks::TaskSet& set_;
  std::vector<std::int32_t> lengths_;
};

}  // namespace megalith::apps
