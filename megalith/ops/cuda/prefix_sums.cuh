#pragma once
#include "megalith/ops/cuda/common.cuh"

// Sums over the threads before. All threads of the warp or block call them together.

namespace megalith::ops::cuda {

/// The sum over the lanes up to this one.
template <class V>
__device__ V sum_up_to_lane(V value) {
  const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const V below = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

/// The sum over the threads up to this one of a block of whole warps, whose own sums `shared` holds afterwards.
inline __device__ int sum_up_to_thread(int value, int (&shared)[kMaxWarps]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
  const int in_warp = sum_up_to_lane(value);
  __syncthreads();  // the last use of `shared`
  if (lane == kWarp - 1) shared[warp] = in_warp;
  __syncthreads();
  int below = 0;
  for (int before = 0; before < warp; ++before) below += shared[before];
  return below + in_warp;
}

}  // namespace megalith::ops::cuda
