#pragma once
#include <vector>

#include "megalith/data/bert_samples.h"
#include "megalith/eval/figures.h"

namespace megalith::eval {

/// A sample of a masked language model whose tokens are given: ids, their types, and targets, the ids that are asked
/// for, -1 where none is. All have one size.
struct MaskedSample {
  std::vector<std::int32_t> ids = {}, types = {}, targets = {};
};

/// The same as samples of an inference. They must outlive it. A sample is padded to a pass shape; its results do not
/// depend on that.
class MaskedSamples final : public Samples {
 public:
  /// `max_tokens`: the model's seq_len.
  MaskedSamples(std::span<const MaskedSample> samples, Index max_tokens) : samples_(samples), max_tokens_(max_tokens) {}
  Index count() const override { return std::ssize(samples_); }
  PassShape shape(Index sample) const override { return pass_shape(tokens(sample), rows(sample), max_tokens_); }
  Index tokens(Index sample) const override { return std::ssize(of(sample).ids); }
  Index rows(Index sample) const override;
  void fill(Index sample, const SampleInputs& to) const override;

 private:
  const MaskedSample& of(Index sample) const { return samples_[static_cast<std::size_t>(sample)]; }

  std::span<const MaskedSample> samples_;
  Index max_tokens_;
};

/// What is asked of a masked language model about its samples: the loss of each masked token and, of pairs, the loss of
/// the order and its two logits.
std::vector<AskedResult> masked_results(const data::BertSampleConfig& config);

/// The natural logarithms of the probabilities of a sample's two orders: 0 in order, 1 not.
std::array<double, 2> order_log_probabilities(const SampleNumbers& numbers);

/// Held-out samples of a masked language model, as epoch 0 of a run has them. Makes all of them once, and keeps 12
/// bytes of each.
class HeldOutSamples final : public Samples {
 public:
  explicit HeldOutSamples(data::BertSamples samples);

  Index count() const override { return samples_.count(); }
  /// That of a run's own evaluation.
  PassShape shape(Index /*sample*/) const override { return {config().seq_len, config().max_masked()}; }
  Index tokens(Index sample) const override { return of(sample).length; }
  Index rows(Index sample) const override { return of(sample).masked; }
  void fill(Index sample, const SampleInputs& to) const override;

  const data::BertSampleConfig& config() const { return samples_.config(); }
  const data::BertSamples& samples() const { return samples_; }
  /// From the numbers of masked_results().
  ExampleResult result_of(Index sample, const SampleNumbers& numbers) const;

 private:
  struct Known {
    std::int32_t length = 0, masked = 0, label = 0;
  };
  /// Memory for one sample.
  struct Room {
    explicit Room(const data::BertSampleConfig& config);
    std::vector<std::int32_t> ids;
    data::BertSample sample;
  };
  const Known& of(Index sample) const { return known_[static_cast<std::size_t>(sample)]; }

  data::BertSamples samples_;
  std::vector<Known> known_;
};

}  // namespace megalith::eval
