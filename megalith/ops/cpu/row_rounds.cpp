#include "megalith/ops/row_rounds_kernels.h"

namespace megalith::ops::cpu {

void choices_of_round(const ChoicesOfRound& args) {
  const auto* from = args.experts.data<std::int32_t>();
  auto* to = args.of_round.data<std::int32_t>();
  for (Index pair = 0; pair < args.experts.numel(); ++pair) {
    const bool is_in = from[pair] >= 0 && args.round_of[static_cast<std::size_t>(from[pair])] == args.round;
    to[pair] = is_in ? from[pair] : -1;
  }
}

void number_pairs(const Tensor& experts, const Tensor& row_of) {
  const auto* from = experts.data<std::int32_t>();
  auto* to = row_of.data<std::int32_t>();
  const Index slices = row_of.numel() / experts.numel();
  for (Index at = 0; at < row_of.numel(); ++at)
    to[at] = from[at / slices] < 0 ? kZeroRow : static_cast<std::int32_t>(at);
}

void pull_places(const Tensor& places, const PullTables& pulls) {
  const auto* from = places.data<std::int32_t>();
  auto *sources = pulls.sources.data<std::int32_t>(), *begin = pulls.begin.data<std::int32_t>(),
       *wants = pulls.wants.data<std::int32_t>(), *counts = pulls.counts.data<std::int32_t>();
  std::int32_t found = 0;
  for (std::int32_t at = 0; at < places.dim(0); ++at) {
    if (from[2 * at] < 0) continue;
    sources[2 * found] = from[2 * at];
    sources[2 * found + 1] = from[2 * at + 1];
    begin[found] = found;
    wants[found++] = at;
  }
  begin[found] = found;
  counts[0] = counts[1] = found;
}

}  // namespace megalith::ops::cpu
