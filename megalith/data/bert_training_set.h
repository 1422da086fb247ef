#pragma once
#include <string>
#include <vector>

#include "megalith/data/bert_samples.h"
#include "megalith/data/blend.h"

namespace megalith::data {

/// TrainingSet for a masked language model: the samples of one corpus, or of several in the proportion of their
/// weights. Each corpus is shuffled again in each of its own epochs.
class BertTrainingSet {
 public:
  struct Corpus {
    BertSamples samples;
    double weight = 1;
  };
  /// All have one config. Throws ConfigError for weights that Blend refuses.
  BertTrainingSet(std::vector<Corpus> corpora, std::uint64_t seed);

  const BertSampleConfig& config() const { return corpora_.front().samples.config(); }
  Index count() const;       ///< samples of all corpora in an epoch of each
  Index num_tokens() const;  ///< of their files
  const std::string& name() const { return name_; }
  /// TrainingSet::fingerprint().
  std::uint64_t fingerprint() const;
  /// Writes sample n of the run, n from 0 across all epochs: a function of n alone.
  void make(Index n, BertSample& out) const;

 private:
  std::vector<Corpus> corpora_;
  Blend blend_;
  std::vector<SampleOrder> orders_;  // by corpus
  std::string name_;
};

}  // namespace megalith::data
