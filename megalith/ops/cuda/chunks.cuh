#pragma once
#include <cstddef>
#include <cstdint>

#include "megalith/ops/cuda/common.cuh"

// What the epilogues of our GEMMs share: pairs of 16-bit numbers in a register, and chunks of shared memory through
// which a warp stores 16 rows of 128 bytes.

namespace megalith::ops::cuda {

inline constexpr int kChunkRows = 16, kChunkRowBytes = 128, kChunkBytes = kChunkRows * kChunkRowBytes;

template <class T>
__device__ std::uint32_t packed(float low, float high) {
  const auto pair = convert_pair<T>(low, high);
  std::uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}
template <class T>
__device__ float2 unpacked(std::uint32_t word) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  } else {
    __half2 pair;
    memcpy(&pair, &word, sizeof pair);
    return __half22float2(pair);
  }
}

/// The offset within a chunk of the lane's 16 bytes of the block `block` of 16 x 16 elements of 16 bits, as
/// hopper::store_matrices() takes them. They are vector 2 block + lane / 16 of row lane % 16, in the order of
/// CU_TENSOR_MAP_SWIZZLE_128B.
__device__ inline int chunk_offset(int block, int lane) {
  const int row = lane % kChunkRows, vector = 2 * block + lane / kChunkRows;
  return row * kChunkRowBytes + (vector ^ row % 8) * 16;
}

}  // namespace megalith::ops::cuda
