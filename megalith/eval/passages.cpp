#include "megalith/eval/passages.h"

#include <algorithm>
#include <bit>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::eval {
namespace {

/// A multiple of a quarter of the power of two below: at most a quarter is padding.
Index padded(Index count, Index least) {
  if (count <= least) return least;
  const Index step = static_cast<Index>(std::bit_floor(static_cast<std::uint64_t>(count))) / 4;
  return round_up(count, std::max(step, least));
}

}  // namespace

PassShape pass_shape(Index inputs, Index targets, Index max_tokens) {
  if (inputs < 1 || inputs > max_tokens || targets < 1 || targets > inputs) {
    throw InternalError(str("[pass_shape] inputs, targets = ", inputs, ", ", targets, ": must be 1 to ", max_tokens,
                            " inputs, and no more targets"));
  }
  constexpr Index kMinTokens = 32, kMinRows = 8;
  const Index tokens = std::min(padded(inputs, kMinTokens), max_tokens);
  return {tokens, std::min(padded(targets, kMinRows), tokens)};
}

Index balanced_batch(Index passages, Index most, int dp) {
  const Index microbatches = std::max<Index>(1, ceil_div(passages, most * dp));
  return std::max<Index>(1, ceil_div(passages, microbatches * dp));
}

std::vector<Round> make_rounds(std::span<const Passage> passages, Index max_tokens,
                               const std::function<RoundSize(const PassShape&)>& size_of) {
  std::map<PassShape, std::vector<Index>, std::greater<>> by_shape;
  for (std::size_t i = 0; i < passages.size(); ++i)
    by_shape[shape_of(passages[i], max_tokens)].push_back(static_cast<Index>(i));
  std::vector<Round> rounds;
  for (const auto& [shape, numbers] : by_shape) {
    const RoundSize size = size_of(shape);
    for (std::size_t begin = 0; begin < numbers.size(); begin += static_cast<std::size_t>(size.passages())) {
      const std::size_t end = std::min(numbers.size(), begin + static_cast<std::size_t>(size.passages()));
      const auto count = static_cast<Index>(end - begin);
      rounds.push_back({.shape = shape,
                        .passages = {numbers.begin() + static_cast<std::ptrdiff_t>(begin),
                                     numbers.begin() + static_cast<std::ptrdiff_t>(end)},
                        .microbatches = static_cast<int>(ceil_div(count, size.batch * size.dp))});
    }
  }
  return rounds;
}

}  // namespace megalith::eval
