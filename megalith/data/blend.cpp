#include "megalith/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::data {
namespace {

Index reversed(Index value, int bits) {
  Index result = 0;
  for (int i = 0; i < bits; ++i) result |= (value >> i & 1) << (bits - 1 - i);
  return result;
}

/// How many p in [0, count) have reversed(p) < limit.
Index reversed_below(Index count, Index limit, int bits) {
  Index total = 0;
  if (count == Index{1} << bits) return limit;
  for (int i = 0; i < bits; ++i) {
    if ((count >> i & 1) == 0) continue;
    // Numbers that begin like count, have 0 where it has this 1, and end with any i bits. Reversed, those i bits lead.
    const Index fixed = reversed(count >> (i + 1) << (i + 1), bits), step = Index{1} << (bits - i);
    if (limit > fixed) total += std::min(Index{1} << i, (limit - fixed - 1) / step + 1);
  }
  return total;
}

}  // namespace

Blend::Blend(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<Index> quotas;
  std::vector<std::pair<double, std::size_t>> remainders;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double share = weights[i] / sum * static_cast<double>(kBlock);
    if (!(weights[i] > 0) || !std::isfinite(share) || share < 1) {
      throw ConfigError(str("weight ", weights[i], ": must be above 0 and at least 1/", kBlock, " of their sum ", sum));
    }
    quotas.push_back(static_cast<Index>(share));
    remainders.emplace_back(share - std::floor(share), i);
  }
  // The parts that rounding down left go to the largest remainders; among equals the first comes first.
  std::ranges::stable_sort(remainders, [](const auto& a, const auto& b) { return a.first > b.first; });
  Index left = kBlock - std::accumulate(quotas.begin(), quotas.end(), Index{0});
  for (std::size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left) ++quotas[remainders[i].second];
  std::partial_sum(quotas.begin(), quotas.end(), std::back_inserter(ends_));
}

Index Blend::quota(int corpus) const {
  const auto c = static_cast<std::size_t>(corpus);
  return ends_[c] - (c == 0 ? 0 : ends_[c - 1]);
}

Blend::Draw Blend::at(Index n) const {
  if (ends_.size() == 1) return {0, n};
  const Index block = n / kBlock, place = n % kBlock, slot = reversed(place, kBits);
  const auto corpus = static_cast<int>(std::upper_bound(ends_.begin(), ends_.end(), slot) - ends_.begin());
  const Index end = ends_[static_cast<std::size_t>(corpus)], begin = end - quota(corpus);
  const Index before = reversed_below(place, end, kBits) - reversed_below(place, begin, kBits);
  return {corpus, block * quota(corpus) + before};
}

}  // namespace megalith::data
