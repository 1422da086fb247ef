#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/fill.h"
#include "megalith/tensor/cuda/load_kernels.h"

namespace megalith::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kMaxBlocks = 64;

/// Usually one block fills a few bytes, in 0.9 us on an H200, most of it the launch of a kernel. Writes sizeof(T) per
/// element.
template <class T>
__global__ void __launch_bounds__(kThreads) fill_kernel(T* to, T value, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{kThreads} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * kThreads)
    to[i] = value;
}

template <class T>
cudaGraphNode_t add_kernel(cudaGraph_t graph, const Fill& fill, const cudaGraphNode_t* dependencies,
                           std::size_t num_dependencies) {
  T* to = static_cast<T*>(fill.to);
  T value = static_cast<T>(fill.value);
  std::size_t count = fill.count;
  void* arguments[] = {&to, &value, &count};
  cudaKernelNodeParams params{};
  params.func = reinterpret_cast<void*>(fill_kernel<T>);
  params.gridDim =
      dim3(static_cast<unsigned>(std::clamp<std::size_t>((count + kThreads - 1) / kThreads, 1, kMaxBlocks)));
  params.blockDim = dim3(kThreads);
  params.kernelParams = arguments;
  cudaGraphNode_t node = nullptr;
  check(cudaGraphAddKernelNode(&node, graph, dependencies, num_dependencies, &params));
  return node;
}

}  // namespace

void load_fill_kernels() {
  load_kernels(fill_kernel<std::uint8_t>, fill_kernel<std::uint16_t>, fill_kernel<std::uint32_t>);
}

cudaError_t find_fill_kernel() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, fill_kernel<std::uint32_t>);
}

cudaGraphNode_t add_fill_kernel(cudaGraph_t graph, const Fill& fill, const cudaGraphNode_t* dependencies,
                                std::size_t num_dependencies) {
  switch (fill.element_bytes) {
    case 1:
      return add_kernel<std::uint8_t>(graph, fill, dependencies, num_dependencies);
    case 2:
      return add_kernel<std::uint16_t>(graph, fill, dependencies, num_dependencies);
    case 4:
      return add_kernel<std::uint32_t>(graph, fill, dependencies, num_dependencies);
    default:
      throw InternalError(str("[add_fill_kernel] element_bytes = ", fill.element_bytes, ": must be 1, 2 or 4"));
  }
}

}  // namespace megalith::cuda
