#include "megalith/eval/samples.h"

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

PassShape pass_shape(Index tokens, Index rows, Index max_tokens) {
  if (tokens < 1 || tokens > max_tokens || rows < 0 || rows > tokens) {
    throw InternalError(str("[pass_shape] tokens, rows = ", tokens, ", ", rows, ": must be 1 to ", max_tokens,
                            " tokens, and no more rows"));
  }
  constexpr Index kMinTokens = 32, kMinRows = 8;
  const Index padded_tokens = std::min(padded(tokens, kMinTokens), max_tokens);
  return {padded_tokens, std::min(padded(rows, kMinRows), padded_tokens)};
}

PassCounts count_shapes(const Samples& samples) {
  PassCounts counts;
  for (Index i = 0; i < samples.count(); ++i) ++counts[samples.shape(i)];
  return counts;
}

Index balanced_batch(Index samples, Index most, int dp) {
  const Index microbatches = std::max<Index>(1, ceil_div(samples, most * dp));
  return std::max<Index>(1, ceil_div(samples, microbatches * dp));
}

std::vector<Round> make_rounds(const Samples& samples, const std::function<RoundSize(const PassShape&)>& size_of) {
  std::map<PassShape, std::vector<Index>, std::greater<>> by_shape;
  for (Index i = 0; i < samples.count(); ++i) by_shape[samples.shape(i)].push_back(i);
  std::vector<Round> rounds;
  for (const auto& [shape, numbers] : by_shape) {
    const RoundSize size = size_of(shape);
    for (std::size_t begin = 0; begin < numbers.size(); begin += static_cast<std::size_t>(size.samples())) {
      const std::size_t end = std::min(numbers.size(), begin + static_cast<std::size_t>(size.samples()));
      const auto count = static_cast<Index>(end - begin);
      rounds.push_back({.shape = shape,
                        .samples = {numbers.begin() + static_cast<std::ptrdiff_t>(begin),
                                    numbers.begin() + static_cast<std::ptrdiff_t>(end)},
                        .microbatches = static_cast<int>(ceil_div(count, size.batch * size.dp))});
    }
  }
  return rounds;
}

}  // namespace megalith::eval
