#pragma once
#include <cstdint>

#include <cuda_runtime.h>

namespace megalith::cuda {

/// A run of equal elements in device memory: what one memset writes.
struct Fill {
  void* to = nullptr;
  std::uint32_t value = 0;
  unsigned element_bytes = 1;  ///< 1, 2 or 4
  std::size_t count = 0;       ///< of elements
};

/// cuda::load_kernels() of this file's.
void load_fill_kernels();
/// What CUDA says when it is asked for one of them: success where this program has code for the GPU that the calling
/// thread uses.
cudaError_t find_fill_kernel();

/// Adds a kernel that does it to a graph, behind `dependencies`.
cudaGraphNode_t add_fill_kernel(cudaGraph_t graph, const Fill& fill, const cudaGraphNode_t* dependencies,
                                std::size_t num_dependencies);

}  // namespace megalith::cuda
