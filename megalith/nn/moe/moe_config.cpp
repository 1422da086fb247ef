#include "megalith/nn/moe/moe_config.h"

#include <algorithm>
#include <cmath>

namespace megalith::nn {

Index MoeConfig::capacity_of(Index run) const {
  const double even = static_cast<double>(run * top_k) / static_cast<double>(num_experts);
  return static_cast<Index>(std::min(static_cast<double>(run), std::ceil(even * capacity_factor)));
}

ops::RouterRules MoeConfig::rules() const {
  return {.top_k = top_k,
          .score = score,
          .order = score_before_top_k ? ops::ScoreOrder::before_top_k : ops::ScoreOrder::after_top_k,
          .normalize = normalize_top_k ? ops::NormalizeTopK::yes : ops::NormalizeTopK::no,
          .scale = scale,
          .num_groups = num_groups,
          .group_top_k = group_top_k};
}

}  // namespace megalith::nn
