#pragma once
#include "megalith/tensor/cuda/check.h"

namespace megalith::cuda {

/// Loads kernels on the GPU that the calling thread uses. A kernel that is loaded at its first use waits for the GPU's
/// work, which may wait for another rank.
template <class... Kernels>
void load_kernels(Kernels*... kernels) {
  cudaFuncAttributes attributes{};
  (check(cudaFuncGetAttributes(&attributes, kernels)), ...);
}

}  // namespace megalith::cuda
