#pragma once
#include "megalith/ops/grouped_matmul.h"

namespace megalith::ops {

// weights: (E, N, K) : (N K, K, 1).  rows, others: forward (M, K) : (K, 1), (M, N) : (N, 1); else the reverse.

namespace cpu {
/// Defined in matmul.cpp, whose pieces it is made of.
void grouped_matmul(const GroupedProduct& products);
}  // namespace cpu

namespace cuda {
/// One GEMM per group, in several streams at once (side_streams.h). Defined in gemm.cpp.
void grouped_matmul(Exec& ex, Stream stream, const GroupedProduct& products);
/// Starts or ends AllGroupSizes.
void run_all_group_sizes(Exec& ex, bool on);
}  // namespace cuda

}  // namespace megalith::ops
