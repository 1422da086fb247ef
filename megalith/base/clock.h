#pragma once
#include <chrono>

namespace megalith {

/// Seconds on a clock that never jumps. For intervals and timeouts; never printed as a date.
inline double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace megalith
