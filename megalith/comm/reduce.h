#pragma once
#include <algorithm>
#include <cstddef>
#include <span>

#include "megalith/comm/channel.h"

namespace megalith::comm {

/// out[i] = in[0][i] (+) in[1][i] (+) ... in this order, for i in [begin, end), written to every output. An output may
/// be an input. bf16 and f16 are accumulated in f32 and rounded once. max and min keep a NaN. Each element is computed
/// alone, so the bits do not depend on how a range is cut. It uses one thread and allocates nothing.
void reduce_into(DType dtype, Reduce reduce, std::span<const std::byte* const> inputs,
                 std::span<std::byte* const> outputs, Index begin, Index end);

/// The first element of a member's share of `count`. Shares are of equal size, in whole cache lines, so that no line is
/// written by two ranks. The last ones may be shorter or empty.
constexpr Index share_begin(Index count, Index size, Index member) {
  constexpr Index kElements = 64;
  return std::min(count, round_up(ceil_div(count, size), kElements) * member);
}

}  // namespace megalith::comm
