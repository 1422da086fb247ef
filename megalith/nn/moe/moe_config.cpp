#include "megalith/nn/moe/moe_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "megalith/base/str.h"

namespace megalith::nn {

std::string RankCapacity::text() const {
  if (is_worst_case()) return "worst";
  std::string digits = str(1000 + thousandths % 1000).substr(1);
  while (digits.ends_with('0')) digits.pop_back();
  return digits.empty() ? str(thousandths / 1000) : str(thousandths / 1000, ".", digits);
}

std::optional<RankCapacity> RankCapacity::of(const std::string& text) {
  if (text == "worst") return RankCapacity{};
  double factor = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
  constexpr double kMost = 1e6;
  if (error != std::errc() || end != text.data() + text.size() || !(factor > 0) || factor > kMost) return std::nullopt;
  const double thousandths = std::round(factor * 1000);
  if (thousandths < 1 || std::abs(factor * 1000 - thousandths) > 1e-6 * thousandths) return std::nullopt;
  return RankCapacity{static_cast<Index>(thousandths)};
}

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
