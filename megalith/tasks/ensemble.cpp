#include "megalith/tasks/ensemble.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::tasks {
namespace {

/// Adds the softmax of the logits of a sample.
void add_probabilities(std::span<const float> logits, std::span<double> sums) {
  const auto largest = static_cast<double>(*std::ranges::max_element(logits));
  const auto weight = [&](float logit) { return std::exp(static_cast<double>(logit) - largest); };
  double total = 0;
  for (const float logit : logits) total += weight(logit);
  for (std::size_t i = 0; i < logits.size(); ++i) sums[i] += weight(logits[i]) / total;
}

}  // namespace

Ensemble::Ensemble(const TaskSet& set) : set_(set), sums_(static_cast<std::size_t>(set.count() * set.numbers())) {}

void Ensemble::add(std::span<const float> numbers) {
  if (numbers.size() != sums_.size())
    throw InternalError(str("[ensemble] numbers = ", numbers.size(), ": must be ", sums_.size()));
  ++models_;
  if (classes_of(set_.config().task).empty()) {
    for (std::size_t i = 0; i < numbers.size(); ++i) sums_[i] += static_cast<double>(numbers[i]);
    return;
  }
  const auto classes = static_cast<std::size_t>(set_.numbers());
  for (std::size_t at = 0; at < numbers.size(); at += classes)
    add_probabilities(numbers.subspan(at, classes), std::span(sums_).subspan(at, classes));
}

std::vector<float> Ensemble::mean() const {
  if (models_ == 0) throw InternalError("[ensemble] models = 0: must be one at least");
  std::vector<float> means;
  means.reserve(sums_.size());
  for (const double sum : sums_) means.push_back(static_cast<float>(sum / static_cast<double>(models_)));
  return means;
}

}  // namespace megalith::tasks
