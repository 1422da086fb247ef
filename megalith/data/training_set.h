#pragma once
#include <string>
#include <vector>

#include "megalith/data/blend.h"
#include "megalith/data/samples.h"

namespace megalith::data {

/// The samples of a training run: of one corpus, or of several in the proportion of their weights. Each corpus is
/// shuffled again in each of its own epochs.
class TrainingSet {
 public:
  struct Corpus {
    SampleSet samples;
    double weight = 1;
  };
  /// All have one seq_len, and one end_of_document() or none. Throws ConfigError for weights that Blend refuses.
  explicit TrainingSet(std::vector<Corpus> corpora);

  Index seq_len() const { return corpora_.front().samples.seq_len(); }
  std::optional<std::int32_t> end_of_document() const { return corpora_.front().samples.end_of_document(); }
  Index count() const;       ///< samples of all corpora
  Index num_tokens() const;  ///< of all corpora
  const std::string& name() const { return name_; }
  /// A hash that differs between training sets, for resumes: of each fingerprint (TokenSource::fingerprint()) and
  /// share.
  std::uint64_t fingerprint() const;

  const std::vector<Corpus>& corpora() const { return corpora_; }
  const Blend& blend() const { return blend_; }

 private:
  std::vector<Corpus> corpora_;
  Blend blend_;
  std::string name_;
};

/// The order of a training set for a seed: a function of the sample's number alone.
class TrainingOrder {
 public:
  TrainingOrder(const TrainingSet& set, std::uint64_t seed);
  /// Fills tokens and targets [B * S] with samples first, first + 1, ... of the run, as many as fit. Allocates
  /// nothing.
  void fill(Index first, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;

 private:
  const TrainingSet& set_;
  std::vector<SampleOrder> orders_;  // by corpus
};

}  // namespace megalith::data
