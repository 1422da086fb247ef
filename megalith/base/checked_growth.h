#pragma once
#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "megalith/base/host_limits.h"

namespace megalith {

/// Room for `more` elements at the end, by half as many again as there are, so that appending stays cheap. Throws
/// IoError, naming `what` and `fix` (require_memory()), where the system has less memory free for the larger copy: a
/// control group ends a process that takes more without a word. Of less than 16 MiB the system is not asked.
template <class Elements>
void make_room(Elements& elements, std::size_t more, std::string_view what, std::string_view fix) {
  constexpr std::size_t kAskedFrom = std::size_t{16} << 20;
  const std::size_t capacity = elements.capacity();
  if (capacity - elements.size() >= more) return;
  const std::size_t wanted = std::max(elements.size() + more, capacity + capacity / 2);
  const std::size_t bytes = wanted * sizeof(typename Elements::value_type);
  if (bytes >= kAskedFrom) require_memory(host_limits(), static_cast<Index>(bytes), what, fix);
  elements.reserve(wanted);
}

}  // namespace megalith
