#pragma once
#include "megalith/tensor/cuda/check.h"

namespace megalith::cuda {

/// Loads kernels on the GPU that the calling thread uses: one that is loaded when it is first used waits for what the
/// GPU is doing, and that may be to wait for another rank.
template <class... Kernels>
void load_kernels(Kernels*... kernels) {
  cudaFuncAttributes attributes{};
  (check(cudaFuncGetAttributes(&attributes, kernels)), ...);
}

}  // namespace megalith::cuda
