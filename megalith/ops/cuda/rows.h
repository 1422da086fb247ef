#pragma once
#include <algorithm>

#include "megalith/ops/rows.h"

namespace megalith::ops::cuda {

/// Pairs are cut into parts, and each part counts its experts. Parts are few enough to add up, and short enough to be
/// many.
inline Index pairs_of_part(Index pairs) { return std::max<Index>(256, round_up(ceil_div(pairs, 128), 32)); }
inline Index row_map_parts(Index pairs) { return ceil_div(pairs, pairs_of_part(pairs)); }

/// scratch: i32 [row_map_parts(T K), E]
void build_rows(Stream stream, const BuildRows& args, const Tensor& scratch);
void permute_rows(Stream stream, const PermuteRows& args);
void sum_rows(Stream stream, const SumRows& args);
void sum_rows_backward(Stream stream, const SumRowsBackward& args);

}  // namespace megalith::ops::cuda
