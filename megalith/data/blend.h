#pragma once
#include <array>
#include <span>
#include <vector>

#include "megalith/base/types.h"

namespace megalith::data {

/// Which of several corpora each sample of a run comes from, by weights. Weights are rounded to whole parts of 65,536.
/// Each run of that many samples holds exactly so many of each corpus. They are spread evenly: after n samples, a
/// corpus of weight w has given w n, to within 16.
/// It is a function of the sample's number alone and needs no memory. So a resumed run and any number of data-parallel
/// ranks see the same samples.
/// Source: the bit-reversal permutation (van der Corput 1935), whose every beginning is spread evenly.
class Blend {
 public:
  /// Weights above 0, of which only the ratios matter. Throws ConfigError naming one that is too small for one part.
  explicit Blend(std::span<const double> weights);

  int size() const { return static_cast<int>(ends_.size()); }
  /// How many of 65,536 samples come from a corpus.
  Index quota(int corpus) const;

  /// The corpus of sample n, and how many samples it gave before.
  struct Draw {
    int corpus = 0;
    Index n = 0;
    bool operator==(const Draw&) const = default;
  };
  Draw at(Index n) const;

 private:
  static constexpr int kBits = 16;
  static constexpr Index kBlock = Index{1} << kBits;

  std::vector<Index> ends_;  // corpus c owns the slots [ends_[c-1], ends_[c]) of a block
};

}  // namespace megalith::data
