#pragma once
#include <array>

#include <cuda.h>

#include "megalith/ops/cuda/chunks.cuh"
#include "megalith/tensor/cuda/driver.h"
#include "megalith/tensor/tensor.h"

// Maps of tensors for bulk tensor copies: boxes whose rows are 128 bytes, swizzled as the tensor cores read them, and
// boxes of scales, which are not.

namespace megalith::ops::cuda {

inline CUtensorMapDataType map_type(DType dtype) {
  return dtype == DType::u8    ? CU_TENSOR_MAP_DATA_TYPE_UINT8
         : dtype == DType::f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
         : dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                               : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

/// A map of an array whose dimensions are `sizes`, the innermost first, in such boxes. steps: the elements from one
/// index to the next, of all dimensions but the innermost.
template <std::size_t kRank>
CUtensorMap tensor_map(const Tensor& tensor, const std::array<Index, kRank>& sizes,
                       const std::array<Index, kRank - 1>& steps, const std::array<int, kRank>& box,
                       CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  std::array<cuuint64_t, kRank> counts{};
  std::array<cuuint64_t, kRank - 1> strides{};
  std::array<cuuint32_t, kRank> boxes{}, ones{};
  for (std::size_t i = 0; i < kRank; ++i) {
    counts[i] = static_cast<cuuint64_t>(sizes[i]);
    boxes[i] = static_cast<cuuint32_t>(box[i]);
    ones[i] = 1;
    if (i + 1 < kRank) strides[i] = static_cast<cuuint64_t>(steps[i] * size_of(tensor.dtype()));
  }
  CUtensorMap map{};
  megalith::cuda::check_driver(MEGALITH_DRIVER(cuTensorMapEncodeTiled)(
      &map, map_type(tensor.dtype()), kRank, tensor.raw(), counts.data(), strides.data(), boxes.data(), ones.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

/// A map of [rows, columns], or of weights [groups, rows, columns], in boxes of box_rows rows of 128 bytes.
inline CUtensorMap map_by_rows(const Tensor& tensor, int box_rows) {
  const int rank = tensor.shape().rank();
  const Index rows = tensor.dim(rank - 2), columns = tensor.dim(rank - 1), groups = rank == 3 ? tensor.dim(0) : 1;
  const int box_columns = kChunkRowBytes / static_cast<int>(size_of(tensor.dtype()));
  return tensor_map<3>(tensor, {columns, rows, groups}, {columns, rows * columns}, {box_columns, box_rows, 1});
}

/// A map of a matrix of codes [rows, depth] in boxes of box_rows x 128.
inline CUtensorMap map_of_codes(const Tensor& codes, int box_rows) {
  return tensor_map<2>(codes, {codes.dim(1), codes.dim(0)}, {codes.dim(1)}, {kChunkRowBytes, box_rows});
}

/// A map of the scales of vectors [blocks, rows] in boxes of one block and box_rows rows. A box has zeros where rows
/// end.
inline CUtensorMap map_of_scales(const Tensor& scales, int box_rows) {
  return tensor_map<2>(scales, {scales.dim(1), scales.dim(0)}, {scales.dim(1)}, {box_rows, 1},
                       CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace megalith::ops::cuda
