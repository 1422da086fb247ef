#pragma once
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/quantise.h"

namespace megalith::ops::cpu {

inline constexpr Index kEdge = kScaleBlock;

/// The sums of a block of a GEMM's result, 128 x 128 at most, with row stride kEdge.
struct BlockSums {
  alignas(64) float at[kEdge * kEdge] = {};
};

/// Where a block's part of an operand begins: a row, and a block of the sum's index.
struct OperandPart {
  const Operand& operand;
  Index row = 0, block = 0;
};

/// sums [rows, columns] += a b^T over `blocks` blocks of the sum's index. For each block it widens the codes,
/// multiplies them by the f32 GEMM, and adds the products times their scales.
void add_scaled_product(const OperandPart& a, Index rows, const OperandPart& b, Index columns, Index blocks,
                        BlockSums& sums);

/// to [rows, columns], with row stride `stride`, = sums, or +=.
template <class T>
void store_sums(const BlockSums& sums, Index rows, Index columns, bool adds, T* to, Index stride) {
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) {
      T& place = to[r * stride + c];
      const float before = adds ? static_cast<float>(place) : 0.0f;
      place = static_cast<T>(before + sums.at[r * kEdge + c]);
    }
  }
}

}  // namespace megalith::ops::cpu
