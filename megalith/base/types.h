#pragma once
#include <cstddef>
#include <cstdint>

namespace megalith {

/// Every size, count, offset and coordinate of an element.
using Index = std::int64_t;

constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }
constexpr Index round_up(Index a, Index multiple) { return ceil_div(a, multiple) * multiple; }

}  // namespace megalith
