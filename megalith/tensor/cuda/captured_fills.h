#pragma once
#include <cuda_runtime.h>

namespace megalith::cuda {

/// Makes kernels of a captured graph's small memsets, as libraries put one of a few bytes in front of many products and
/// each attention. In a graph of one branch the driver sets them in the stream of kernels; where streams meet, a memset
/// costs its neighbours 10 to 20 us (1.2B, TP 2 on H200s: 404 of them in a step), a kernel 2.
void replace_small_fills(cudaGraph_t graph);

}  // namespace megalith::cuda
