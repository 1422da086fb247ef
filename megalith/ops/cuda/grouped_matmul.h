#pragma once
#include "megalith/ops/grouped_matmul.h"

namespace megalith::ops::cuda {

/// One product after the other, in gemm.cpp.
void grouped_matmul(Exec& ex, Stream stream, const GroupedProduct& products);

}  // namespace megalith::ops::cuda
