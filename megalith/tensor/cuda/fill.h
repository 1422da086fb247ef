#pragma once
#include <cstdint>

#include <cuda_runtime.h>

namespace megalith::cuda {

/// Contiguous equal elements in device memory, as one memset writes them.
struct Fill {
  void* to = nullptr;
  std::uint32_t value = 0;
  unsigned element_bytes = 1;  ///< 1, 2 or 4
  std::size_t count = 0;       ///< number of elements
};

/// Calls cuda::load_kernels() for the kernels of this file.
void load_fill_kernels();
/// CUDA's status for a query of one of them. It is success where this program has code for the GPU that the calling
/// thread uses.
cudaError_t find_fill_kernel();

/// Adds a kernel that does it to a graph, after `dependencies`.
cudaGraphNode_t add_fill_kernel(cudaGraph_t graph, const Fill& fill, const cudaGraphNode_t* dependencies,
                                std::size_t num_dependencies);

}  // namespace megalith::cuda
