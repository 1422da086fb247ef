#include "megalith/corpus/minhash.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/hash.h"
#include "megalith/base/philox.h"

namespace megalith::corpus {
namespace {

constexpr std::size_t kPadding = 16;  // lanes of the widest vectors

}  // namespace

double Banding::recall(double similarity) const { return 1.0 - std::pow(1.0 - std::pow(similarity, rows), bands); }

Banding choose_banding(double recall, double similarity) {
  const double below = std::max(0.0, similarity - 0.2);
  Banding best;
  const auto is_better = [&](const Banding& candidate) {
    if (best.bands == 0) return true;
    const bool selects = candidate.recall(below) <= 0.5, best_selects = best.recall(below) <= 0.5;
    if (selects != best_selects) return selects;
    return selects ? candidate.hashes() < best.hashes() : candidate.recall(below) < best.recall(below);
  };
  for (int rows = 1; rows <= kMaxHashes; ++rows)
    for (int bands = 1; bands * rows <= kMaxHashes; ++bands) {
      const Banding candidate{bands, rows};
      if (candidate.hashes() % 4 == 0 && candidate.recall(similarity) >= recall && is_better(candidate))
        best = candidate;
    }
  return best;
}

Banding nearest_banding(const Banding& asked, double recall, double similarity) {
  const int hashes = std::min(asked.hashes(), kMaxHashes);
  for (int rows = hashes; rows > 0; --rows)
    if (const Banding candidate{hashes / rows, rows}; candidate.recall(similarity) >= recall) return candidate;
  return choose_banding(recall, similarity);
}

MinHash::MinHash(const Banding& banding, std::uint64_t seed) : banding_(banding) {
  const auto hashes = static_cast<std::size_t>(banding.hashes());
  const std::size_t padded = (hashes + kPadding - 1) / kPadding * kPadding;
  factors_.resize(padded, 1);
  offsets_.resize(padded, 0);
  minima_.resize(padded);
  const RandomSite factor{.seed = seed, .step = 0, .site = 1}, offset{.seed = seed, .step = 0, .site = 2};
  for (std::size_t i = 0; i < hashes; ++i) {
    factors_[i] = factor.word(i) | 1;
    offsets_[i] = offset.word(i);
  }
}

void MinHash::bands(std::span<const std::uint64_t> elements, std::span<std::uint64_t> out) {
  static const MinHashKernel widest = minhash_kernels().back().kernel;
  upper_.resize(elements.size());
  for (std::size_t i = 0; i < elements.size(); ++i) upper_[i] = static_cast<std::uint32_t>(elements[i] >> 32);
  widest({.elements = upper_.data(),
          .size = upper_.size(),
          .factors = factors_.data(),
          .offsets = offsets_.data(),
          .minima = minima_.data(),
          .hashes = minima_.size()});
  const auto rows = static_cast<std::size_t>(banding_.rows);
  for (std::size_t band = 0; band < out.size(); ++band) {
    std::uint64_t hash = band;
    for (std::size_t row = 0; row < rows; ++row) hash = hash_combine(hash, minima_[band * rows + row]);
    out[band] = hash;
  }
}

}  // namespace megalith::corpus
