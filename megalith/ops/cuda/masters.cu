#include "megalith/ops/cuda/masters.cuh"
#include "megalith/ops/masters_kernels.h"

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 256;

// One element a thread, because a range may begin anywhere. Saves, loads and the start of a run call them.

__global__ void __launch_bounds__(kThreads) join_kernel(const SplitMasters masters, float* values, Index n) {
  const Index i = blockIdx.x * Index{kThreads} + threadIdx.x;
  if (i < n) values[i] = masters.unpacked<1>(masters.load<1>(i), i)[0];
}

__global__ void __launch_bounds__(kThreads) split_kernel(const float* values, const SplitMasters masters, Index n) {
  const Index i = blockIdx.x * Index{kThreads} + threadIdx.x;
  if (i < n) masters.store<1>(i, Values<float, 1>{{values[i]}});
}

}  // namespace

void join_masters(Stream stream, const MasterValues& masters, const Tensor& values) {
  const Index n = values.numel();
  launch({stream, ceil_div(n, Index{kThreads}), kThreads}, join_kernel, SplitMasters(masters), pointer<float>(values),
         n);
}

void split_masters(Stream stream, const Tensor& values, const MasterValues& masters) {
  const Index n = values.numel();
  launch({stream, ceil_div(n, Index{kThreads}), kThreads}, split_kernel, pointer<const float>(values),
         SplitMasters(masters), n);
}

}  // namespace megalith::ops::cuda
