#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/elapsed_kernels.h"

// One thread each, which reads the GPU's clock: the same one in all streams, whatever the frequency of the
// multiprocessors. 8 to 24 bytes, so there is no roof to compare with: most of the time is the launch.

namespace megalith::ops::cuda {
namespace {

__device__ std::int64_t gpu_now_ns() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return static_cast<std::int64_t>(now);
}

__global__ void start_clock_kernel(std::int64_t* begin) { *begin = gpu_now_ns(); }

__global__ void add_elapsed_kernel(const std::int64_t* begin, double* sum) { *sum += elapsed_us(*begin, gpu_now_ns()); }

}  // namespace

void start_clock(Stream stream, const Tensor& begin) {
  launch({stream, 1, 1}, start_clock_kernel, pointer<std::int64_t>(begin));
}

void add_elapsed(Stream stream, const Tensor& begin, const Tensor& sum) {
  launch({stream, 1, 1}, add_elapsed_kernel, pointer<const std::int64_t>(begin), pointer<double>(sum));
}

}  // namespace megalith::ops::cuda
