#pragma once
#include "megalith/ops/grouped_matmul.h"
#include "megalith/ops/quantise.h"

namespace megalith::ops {

// Grouped GEMMs (grouped_matmul.h) of matrices in E4M3, as for the experts of a mixture in FP8. Sums are those of
// scaled_matmul.h: over blocks of 128 along the sum's index, ascending, each times the scales of both operands. Groups
// must begin at multiples of 128 rows, so no block of either kind has rows of two groups. One kernel of our own
// computes all groups on Hopper GPUs (cuda/scaled_tiles.cuh); no other GPU runs these ops. They throw ShapeError for
// other shapes, dtypes and groups, and BackendError on such a GPU.

/// c_g = a_g b_g^T for the rows of each group, with a weight by squares of 128 x 128. The rows of c from a group's end
/// up to the next multiple of 128 become zeros; quantise() makes the rows of a there zeros. Other rows are neither read
/// nor written. Any group may be empty.
struct ScaledGroupedMatmul {
  Operand a;  // in   [M, K] by vectors
  /// in   by squares, of all G groups: [G N, K], the weights [N, K] below each other; with `turned` [N, G K], weights
  ///      [K, N] that were quantised to Quantise::turned as one matrix [G K, N]
  Operand b;
  bool turned = false;
  Tensor c;  // out  [M, N] f32, bf16 or f16; N and K multiples of 128
  GroupRows groups;
};
void scaled_grouped_matmul(Exec& ex, const ScaledGroupedMatmul& args);

/// dw_g = dy_g^T x_g, or dw_g +=, of turned operands with blocks along the rows of groups. Columns from a group's end
/// up to the next multiple of 128 must be zeros, as quantise() makes them. For an empty group, dw_g keeps its bits
/// where it accumulates, and is 0 where it is overwritten.
struct ScaledGroupedWeightGrad {
  Operand dy, x;  // in   [N, M], [K, M] by vectors
  Tensor dw;      // out  [G, N, K] f32, or bf16 or f16 where it is overwritten; N and K multiples of 128
  GroupRows groups;
  Write write = Write::accumulate;
  SmMargin sm_margin = SmMargin::none;  ///< of the kernel
};
void scaled_grouped_weight_grad(Exec& ex, const ScaledGroupedWeightGrad& args);

/// Why the ops above throw BackendError on this device; empty: they run.
std::string why_no_scaled_grouped_matmul(Exec& ex);

}  // namespace megalith::ops
