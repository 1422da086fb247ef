#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "megalith/ops/cuda/ptx.h"

// Matrix products of one warp: 16 rows of sums in registers, operands in shared memory. 16-bit types use the tensor
// cores, f32 fused multiply-adds. Both keep their sums in the same registers, so the code between two products
// (softmax, mask, dropout) is written once.

namespace megalith::ops::cuda {

constexpr int kWarp = 32;
constexpr int kWarpRows = 16;

__device__ inline int warp_index() { return static_cast<int>(threadIdx.x) / kWarp; }
__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % kWarp; }

/// Elements from one row of a tile in shared memory to the next. The 16 bytes after each row make the stride an odd
/// multiple of 16 bytes (the columns take a multiple of 32). So the 8 rows that one access reads lie in different
/// banks.
template <class T>
constexpr int row_stride(int columns) {
  return columns + 16 / static_cast<int>(sizeof(T));
}

/// Sums [16, kColumns] over a warp, as the tensor cores leave them. For the 8-column tile t, lane l holds
///   tile[t][0..1]: row l / 4,     columns 8 t + 2 (l % 4) + 0..1
///   tile[t][2..3]: row l / 4 + 8, the same columns.
template <int kColumns>
struct Fragment {
  static constexpr int kTiles = kColumns / 8;
  float tile[kTiles][4];
};

/// Calls f(t, i, element) for the lane's elements tile[t][i].
template <int kColumns, class F>
__device__ void for_each_element(Fragment<kColumns>& fragment, const F& f) {
#pragma unroll
  for (int t = 0; t < Fragment<kColumns>::kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) f(t, i, fragment.tile[t][i]);
  }
}

/// T = __nv_bfloat16 or __half.
template <class T>
struct WarpProducts {
  /// Elements of shared memory that one warp needs for add() with weights of kDepth columns.
  static constexpr int scratch(int /*depth*/) { return 0; }

  /// Column of a sum of add(): the first of the two that a lane holds in a row of tile t.
  static __device__ int output_column(int t) { return 8 * t + 2 * (lane_index() % 4); }

  /// sums [16, kColumns] += left [16, kDepth] right^T; right [kColumns, kDepth]. Both have rows of row_stride(kDepth).
  template <int kDepth, int kColumns>
  static __device__ void add_transposed(Fragment<kColumns>& sums, const T* left, const T* right) {
    constexpr int kStride = row_stride<T>(kDepth);
    const int lane = lane_index();
    left += lane % 16 * kStride + lane / 16 * 8;
    right += (lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      std::uint32_t a[4];
      load_matrices(a, left + k);
#pragma unroll
      for (int n = 0; n < kColumns; n += 16) {
        std::uint32_t b[4];
        load_matrices(b, right + n * kStride + k);
        multiply_add<T>(sums.tile[n / 8], a, b[0], b[1]);
        multiply_add<T>(sums.tile[n / 8 + 1], a, b[2], b[3]);
      }
    }
  }

  /// sums [16, kColumns] += weights [16, kDepth], rounded to T, times right [kDepth, kColumns], rows kStride apart.
  /// The sums of one product have the layout that the next one reads its left side in.
  template <int kStride, int kDepth, int kColumns>
  static __device__ void add(Fragment<kColumns>& sums, const Fragment<kDepth>& weights, const T* right,
                             T* /*scratch*/) {
    const int lane = lane_index();
    right += lane % 16 * kStride + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      const auto& left = weights.tile[k / 8];
      const auto& left_end = weights.tile[k / 8 + 1];
      const std::uint32_t a[4] = {packed(left[0], left[1]), packed(left[2], left[3]), packed(left_end[0], left_end[1]),
                                  packed(left_end[2], left_end[3])};
#pragma unroll
      for (int n = 0; n < kColumns; n += 16) {
        std::uint32_t b[4];
        load_matrices_transposed(b, right + k * kStride + n);
        multiply_add<T>(sums.tile[n / 8], a, b[0], b[1]);
        multiply_add<T>(sums.tile[n / 8 + 1], a, b[2], b[3]);
      }
    }
  }

 private:
  static __device__ std::uint32_t packed(float low, float high) {
    std::uint32_t bits;
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
      std::memcpy(&bits, &pair, sizeof bits);
    } else {
      const __half2 pair = __floats2half2_rn(low, high);
      std::memcpy(&bits, &pair, sizeof bits);
    }
    return bits;
  }
};

template <>
struct WarpProducts<float> {
  static constexpr int scratch(int depth) { return kWarpRows * row_stride<float>(depth); }

  /// A lane owns 4 neighbours of every 16 columns, so that one access reads them.
  static __device__ int output_column(int t) { return 16 * (t / 2) + 4 * (lane_index() % 4) + 2 * (t % 2); }

  template <int kDepth, int kColumns>
  static __device__ void add_transposed(Fragment<kColumns>& sums, const float* left, const float* right) {
    constexpr int kStride = row_stride<float>(kDepth);
    const int lane = lane_index();
    left += lane / 4 * kStride;
    right += lane % 4 * 2 * kStride;
#pragma unroll 2
    for (int k = 0; k < kDepth; k += 4) {
      const float4 a[2] = {four(left + k), four(left + 8 * kStride + k)};
#pragma unroll
      for (int t = 0; t < Fragment<kColumns>::kTiles; ++t) {
        const float* row = right + 8 * t * kStride + k;
        const float4 b[2] = {four(row), four(row + kStride)};
#pragma unroll
        for (int i = 0; i < 4; ++i) add_dot(sums.tile[t][i], a[i / 2], b[i % 2]);
      }
    }
  }

  /// Lanes hold parts of a row of weights. The warp first writes them to its scratch.
  template <int kStride, int kDepth, int kColumns>
  static __device__ void add(Fragment<kColumns>& sums, const Fragment<kDepth>& weights, const float* right,
                             float* scratch) {
    constexpr int kWeightStride = row_stride<float>(kDepth);
    const int lane = lane_index();
    float* mine = scratch + lane / 4 * kWeightStride;
#pragma unroll
    for (int t = 0; t < Fragment<kDepth>::kTiles; ++t) {
      const auto& w = weights.tile[t];
      const int column = 8 * t + lane % 4 * 2;
      *reinterpret_cast<float2*>(mine + column) = make_float2(w[0], w[1]);
      *reinterpret_cast<float2*>(mine + 8 * kWeightStride + column) = make_float2(w[2], w[3]);
    }
    __syncwarp();
    right += lane % 4 * 4;
#pragma unroll 1
    for (int k = 0; k < kDepth; k += 4) {
      const float4 a[2] = {four(mine + k), four(mine + 8 * kWeightStride + k)};
      add_row(sums, a[0].x, a[1].x, right + k * kStride);
      add_row(sums, a[0].y, a[1].y, right + (k + 1) * kStride);
      add_row(sums, a[0].z, a[1].z, right + (k + 2) * kStride);
      add_row(sums, a[0].w, a[1].w, right + (k + 3) * kStride);
    }
    __syncwarp();  // the next add() writes the scratch
  }

 private:
  static __device__ float4 four(const float* from) { return *reinterpret_cast<const float4*>(from); }

  static __device__ void add_dot(float& sum, const float4& a, const float4& b) {
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    sum = fmaf(a.w, b.w, sum);
  }

  /// Adds one row of the right side, times the weights of the lane's two rows.
  template <int kColumns>
  static __device__ void add_row(Fragment<kColumns>& sums, float upper, float lower, const float* right) {
#pragma unroll
    for (int t = 0; t < Fragment<kColumns>::kTiles; t += 2) {
      const float4 b = four(right + 8 * t);
      auto &x = sums.tile[t], &y = sums.tile[t + 1];
      x[0] = fmaf(upper, b.x, x[0]);
      x[1] = fmaf(upper, b.y, x[1]);
      y[0] = fmaf(upper, b.z, y[0]);
      y[1] = fmaf(upper, b.w, y[1]);
      x[2] = fmaf(lower, b.x, x[2]);
      x[3] = fmaf(lower, b.y, x[3]);
      y[2] = fmaf(lower, b.z, y[2]);
      y[3] = fmaf(lower, b.w, y[3]);
    }
  }
};

}  // namespace megalith::ops::cuda
