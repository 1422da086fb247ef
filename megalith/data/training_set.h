#pragma once
#include <string>
#include <vector>

#include "megalith/data/blend.h"
#include "megalith/data/samples.h"

namespace megalith::data {

/// What a training run draws its samples from: one corpus, or several in the proportion of their weights. Each corpus
/// is shuffled anew in each of its own epochs.
class TrainingSet {
 public:
  struct Corpus {
    SampleSet samples;
    double weight = 1;
  };
  /// One seq_len for all. Throws ConfigError for weights that cannot be met (Blend).
  explicit TrainingSet(std::vector<Corpus> corpora);

  Index seq_len() const { return corpora_.front().samples.seq_len(); }
  Index count() const;       ///< samples of all corpora
  Index num_tokens() const;  ///< of all corpora
  const std::string& name() const { return name_; }
  /// Tells two training sets apart at resume: TokenSource::fingerprint() of each corpus, and their shares.
  std::uint64_t fingerprint() const;

  const std::vector<Corpus>& corpora() const { return corpora_; }
  const Blend& blend() const { return blend_; }

 private:
  std::vector<Corpus> corpora_;
  Blend blend_;
  std::string name_;
};

/// The order in which a run of a seed sees a training set. A function of the sample's number alone.
class TrainingOrder {
 public:
  TrainingOrder(const TrainingSet& set, std::uint64_t seed);
  /// Samples first, first + 1, ... of the run, as many as fit: tokens, targets [B * S]. Allocates nothing.
  void fill(Index first, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;

 private:
  const TrainingSet& set_;
  std::vector<SampleOrder> orders_;  // by corpus
};

}  // namespace megalith::data
