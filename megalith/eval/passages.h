#pragma once
#include "megalith/eval/samples.h"

namespace megalith::eval {

/// Tokens whose probabilities are asked for: ln p(ids[i] | ids[0], ..., ids[i - 1]) for i from `first_target` on.
struct Passage {
  std::span<const std::int32_t> ids;  ///< two or more
  Index first_target = 1;             ///< in [1, ids.size())

  /// Tokens that the model reads: all but the last.
  Index inputs() const { return static_cast<Index>(ids.size()) - 1; }
  Index targets() const { return static_cast<Index>(ids.size()) - first_target; }
};

/// Passages as samples of a model that predicts the next token. They must outlive it.
class PassageSamples final : public Samples {
 public:
  /// `max_tokens`: the model's seq_len.
  PassageSamples(std::span<const Passage> passages, Index max_tokens) : passages_(passages), max_tokens_(max_tokens) {}
  Index count() const override { return std::ssize(passages_); }
  PassShape shape(Index sample) const override { return pass_shape(tokens(sample), rows(sample), max_tokens_); }
  Index tokens(Index sample) const override { return passage(sample).inputs(); }
  Index rows(Index sample) const override { return passage(sample).targets(); }
  void fill(Index sample, const SampleInputs& to) const override;

 private:
  const Passage& passage(Index sample) const { return passages_[static_cast<std::size_t>(sample)]; }

  std::span<const Passage> passages_;
  Index max_tokens_;
};

/// The scores of a passage, target by target.
struct PassageScore {
  std::vector<double> log_probabilities;  ///< natural logarithms
  std::vector<std::int32_t> best_ids;     ///< the likeliest ids, ties to the lower one; empty unless asked for
};
PassageScore score_of(const SampleNumbers& numbers);

}  // namespace megalith::eval
