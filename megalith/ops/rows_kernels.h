#pragma once
#include <algorithm>

#include "megalith/ops/rows.h"

namespace megalith::ops {

// x, y: (T, H) : (H, 1).  rows: (M, H) : (H, 1).  experts, row_of, weights: (T, K) : (K, 1).  pair_of: (M) : (1).
// groups.begin, groups.rows: (E) : (1) i32.  scratch on a GPU: (row_map_parts(T K), E) : (E, 1) i32.

namespace cpu {
void build_rows(const BuildRows& args);
void permute_rows(const PermuteRows& args);
void sum_rows(const SumRows& args);
}  // namespace cpu

namespace cuda {
/// Pairs are cut into parts, and each part counts its experts. Parts are few enough to add up, and short enough to be
/// many.
inline Index pairs_of_part(Index pairs) { return std::max<Index>(256, round_up(ceil_div(pairs, 128), 32)); }
inline Index row_map_parts(Index pairs) { return ceil_div(pairs, pairs_of_part(pairs)); }

void build_rows(Stream stream, const BuildRows& args, const Tensor& scratch);
void permute_rows(Stream stream, const PermuteRows& args);
void sum_rows(Stream stream, const SumRows& args);
}  // namespace cuda

}  // namespace megalith::ops
