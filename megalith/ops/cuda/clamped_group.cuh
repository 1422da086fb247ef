#pragma once
#include <cstdint>

namespace megalith::ops::cuda {

/// Where a group's rows lie, of `all` rows that the operands have.
struct ClampedGroup {
  int begin = 0, rows = 0;
};

/// Ops that make groups take away the rows that have no room, and count them (limit_rows, regroup_rows). The kernels of
/// products clamp once more: with any numbers in begin and rows they end, and write no row beyond the operands.
__device__ inline ClampedGroup clamped_group(const std::int32_t* begin, const std::int32_t* rows, int group, int all) {
  const int first = begin == nullptr ? 0 : min(max(__ldg(begin + group), 0), all);
  return {first, rows == nullptr ? all : min(max(__ldg(rows + group), 0), all - first)};
}

}  // namespace megalith::ops::cuda
