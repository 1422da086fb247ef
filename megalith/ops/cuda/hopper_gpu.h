#pragma once
#include "megalith/tensor/cuda/driver.h"
#include "megalith/tensor/cuda/gpu_attribute.h"

namespace megalith::ops::cuda {

/// What kernels for Hopper with bulk tensor copies must know of the current GPU. An Exec's backend keeps it, as
/// products may be captured into graphs. For files that have MEGALITH_HAS_SM90A.
struct HopperGpu {
  HopperGpu() {
    if constexpr (MEGALITH_HAS_SM90A == 0) return;
    multiprocessors = megalith::cuda::gpu_attribute(cudaDevAttrMultiProcessorCount);
    is_there = megalith::cuda::gpu_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
               MEGALITH_DRIVER(cuTensorMapEncodeTiled) != nullptr;
  }

  bool is_there = false;
  int multiprocessors = 0;
};

}  // namespace megalith::ops::cuda
