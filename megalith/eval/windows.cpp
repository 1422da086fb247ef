#include "megalith/eval/windows.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::eval {

std::vector<Window> sliding_windows(Index tokens, Index size, Index stride) {
  if (tokens < 2 || stride < 1 || stride > size) {
    throw InternalError(str("[sliding_windows] tokens, size, stride = ", tokens, ", ", size, ", ", stride,
                            ": must be 2 or more tokens, and 1 <= stride <= size"));
  }
  std::vector<Window> windows = {{0, 1, std::min(size + 1, tokens)}};
  while (windows.back().end < tokens) {
    const Window& last = windows.back();
    windows.push_back({last.start + stride, last.end, std::min(last.end + stride, tokens)});
  }
  return windows;
}

std::vector<Window> disjoint_windows(Index tokens, Index size) {
  if (tokens < 2 || size < 1)
    throw InternalError(str("[disjoint_windows] tokens, size = ", tokens, ", ", size, ": must be at least 2 and 1"));
  std::vector<Window> windows;
  for (Index first = 1; first < tokens; first += size) {
    const Index end = std::min(first + size, tokens);
    windows.push_back({std::max<Index>(end - 1 - size, 0), first, end});
  }
  return windows;
}

Passage passage_of(std::span<const std::int32_t> ids, const Window& window) {
  return {ids.subspan(static_cast<std::size_t>(window.start), static_cast<std::size_t>(window.end - window.start)),
          window.first_target - window.start};
}

}  // namespace megalith::eval
