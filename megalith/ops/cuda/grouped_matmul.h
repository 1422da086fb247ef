#pragma once
#include "megalith/ops/grouped_matmul.h"

namespace megalith::ops::cuda {

/// One GEMM per group, in several streams at once (side_streams.h). Defined in gemm.cpp.
void grouped_matmul(Exec& ex, Stream stream, const GroupedProduct& products);
/// Starts or ends AllGroupSizes.
void run_all_group_sizes(Exec& ex, bool on);

}  // namespace megalith::ops::cuda
