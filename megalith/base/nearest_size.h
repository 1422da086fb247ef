#pragma once
#include <algorithm>

#include "megalith/base/types.h"

namespace megalith {

/// The size in 1 .. most with fits(size) that is nearest to `wanted`, the larger of two; 0: there is none.
template <class Fits>
Index nearest_size(Index wanted, Index most, const Fits& fits) {
  if (most < 1) return 0;
  const Index from = std::clamp<Index>(wanted, 1, most);
  for (Index step = 0; from + step <= most || from > step; ++step) {
    if (from + step <= most && fits(from + step)) return from + step;
    if (from > step && fits(from - step)) return from - step;
  }
  return 0;
}

/// The divisor of `size` >= 1 that is nearest to `wanted`, the larger of two.
inline Index nearest_divisor(Index size, Index wanted) {
  return nearest_size(wanted, size, [size](Index divisor) { return size % divisor == 0; });
}

}  // namespace megalith
