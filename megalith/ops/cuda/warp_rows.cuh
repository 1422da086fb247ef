#pragma once
#include "megalith/ops/cuda/common.cuh"

// Rows of a few dozen to a thousand f32 numbers, a warp each: lane l has the numbers l, l + 32, ....

namespace megalith::ops::cuda {

inline constexpr int kRowWarps = 8;  // rows of a block at a time

struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// combine() over the lanes; all get the same bits.
template <class V, class Combine>
__device__ V warp_reduce(V value, Combine combine) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value = combine(value, shuffle_xor(value, mask));
  return value;
}

/// combine() of value(i) for i in [0, n), from `neutral`.
template <class Value, class Combine>
__device__ float reduce_row(int n, float neutral, const Value& value, Combine combine) {
  float mine = neutral;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < n; i += kWarp) mine = combine(mine, value(i));
  return warp_reduce(mine, combine);
}
template <class Value>
__device__ float sum_row(int n, const Value& value) {
  return reduce_row(n, 0.0f, value, Plus{});
}

/// A softmax: exp(z - max) / sum.
struct SoftmaxOfRow {
  float max, sum;
  template <class Logit>
  __device__ SoftmaxOfRow(int n, const Logit& logit) {
    max = reduce_row(n, -INFINITY, logit, Max{});
    sum = sum_row(n, [&](int i) { return expf(logit(i) - max); });
  }
  __device__ float of(float z) const { return expf(z - max) / sum; }
};

/// The row of this warp. There is none where it is not below `rows`.
inline __device__ Index row_of_warp() { return blockIdx.x * Index{kRowWarps} + threadIdx.x / kWarp; }
inline Launch rows_launch(Stream stream, Index rows, Index shared_bytes = 0) {
  return {stream, ceil_div(rows, kRowWarps), kRowWarps * kWarp, shared_bytes};
}

}  // namespace megalith::ops::cuda
