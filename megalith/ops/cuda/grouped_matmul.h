#pragma once
#include "megalith/ops/grouped_matmul.h"

namespace megalith::ops::cuda {

/// A product per group, in several streams at once (side_streams.h). In gemm.cpp.
void grouped_matmul(Exec& ex, Stream stream, const GroupedProduct& products);
/// From here on, or no longer: AllGroupSizes.
void run_all_group_sizes(Exec& ex, bool on);

}  // namespace megalith::ops::cuda
