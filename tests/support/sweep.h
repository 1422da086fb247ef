#pragma once
#include <cstdlib>
#include <string_view>

namespace megalith::support {

/// How far apart the points of a sweep within one test are: 1 where MEGALITH_TESTS=all asks for every one
/// (scripts/test-all), else `sampled`.
inline int sweep_stride(int sampled) {
  const char* const asked = std::getenv("MEGALITH_TESTS");
  return asked != nullptr && std::string_view(asked) == "all" ? 1 : sampled;
}

}  // namespace megalith::support
