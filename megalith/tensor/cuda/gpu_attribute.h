#pragma once
#include <cuda_runtime.h>

#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/gpu_pretence.h"

namespace megalith::cuda {

/// An attribute of the GPU that the calling thread uses.
inline int gpu_attribute(cudaDeviceAttr name) {
  if (name == cudaDevAttrComputeCapabilityMajor && device::pretended().is_ampere) return 8;
  int gpu = 0, value = 0;
  check(cudaGetDevice(&gpu));
  check(cudaDeviceGetAttribute(&value, name, gpu));
  return value;
}

}  // namespace megalith::cuda
