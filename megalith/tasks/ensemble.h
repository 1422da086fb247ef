#pragma once
#include <span>
#include <vector>

#include "megalith/tasks/task_set.h"

namespace megalith::tasks {

/// The ensemble of several models: of MNLI, QQP and RACE the mean of the probabilities that each model gives to the
/// classes of a sample; of SQuAD the mean of the logits of first and last tokens, so that the score of every span is
/// the mean of its scores, and so is the no-answer score of equal spans. Sums are float64. Memory: 8 bytes per number.
class Ensemble {
 public:
  /// `set` must outlive it.
  explicit Ensemble(const TaskSet& set);

  /// Adds what one model gives, as TaskSet::predict() reads it: [count(), numbers()]. Throws InternalError for another
  /// size.
  void add(std::span<const float> numbers);
  /// The means, [count(), numbers()], for TaskSet::predict(). Needs a model.
  std::vector<float> mean() const;

 private:
  const TaskSet& set_;
  std::vector<double> sums_;
  Index models_ = 0;
};

}  // namespace megalith::tasks
