#pragma once
#include <algorithm>
#include <initializer_list>

#include "megalith/runtime/exec.h"

// How sums over rows are cut: rows of a part are added one after the other, then the parts. So sums follow from the
// number of rows alone.

namespace megalith::ops {

namespace cpu {
/// Rows that a partial sum over rows covers. They are few enough to fit the cache, and many enough that adding the
/// parts costs nothing.
inline constexpr Index kSumRows = 128;
inline Index row_blocks(Index rows) { return ceil_div(rows, kSumRows); }
/// sums [columns] += parts[0] + parts[1] + ... in order; parts [blocks, columns].
template <class T>
void add_parts(const T* parts, Index blocks, Index part_stride, Index columns, T* sums);
}  // namespace cpu

namespace cuda {
/// `count` parts of `rows` rows each, the last one perhaps shorter.
struct RowParts {
  Index count = 0, rows = 0;
};
/// 264 parts up to 8192 rows, else 528: two or four for each SM of an H200, of 8 rows at least. Measured there with 264
/// / 528 / 1024 parts, in us of layer norm's backward pass, bf16:
///   8192 x 1536 47 / 57 / 70, 16384 x 1024 59 / 56 / 61, 32768 x 768 98 / 69 / 83.
/// It is the same on any GPU and for every op.
inline RowParts cut_rows(Index rows) {
  const Index rows_per_part = std::max<Index>(8, ceil_div(rows, rows <= 8192 ? 264 : 528));
  return {ceil_div(rows, rows_per_part), rows_per_part};
}
inline Index row_parts(Index rows) { return cut_rows(rows).count; }
/// Number i of each of at most three sums [columns] += parts[0, i] + parts[1, i] + ..., in a fixed order. Null pointers
/// are left out. parts [count, sums, columns]
void add_parts(Stream stream, const float* parts, Index count, Index columns, std::initializer_list<float*> sums);
}  // namespace cuda

/// The parts of these rows on the Exec's device.
inline Index row_parts(const Exec& ex, Index rows) {
  return ex.device() == Device::cpu ? cpu::row_blocks(rows) : cuda::row_parts(rows);
}

}  // namespace megalith::ops
