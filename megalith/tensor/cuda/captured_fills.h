#pragma once
#include <cuda_runtime.h>

namespace megalith::cuda {

/// Replaces a captured graph's small memsets by kernels. Libraries put a memset of a few bytes in front of many GEMMs
/// and each attention. In a graph of one branch the driver runs them in the stream of kernels. Where streams meet, a
/// memset costs its neighbours 10 to 20 us, a kernel 2. 1.2B, TP 2 on H200s has 404 of them in a step.
void replace_small_fills(cudaGraph_t graph);

}  // namespace megalith::cuda
