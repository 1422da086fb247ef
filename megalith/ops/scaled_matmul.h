#pragma once
#include "megalith/ops/matmul.h"
#include "megalith/ops/quantise.h"

namespace megalith::ops {

/// c = a b^T, or c += with Write::accumulate, of matrices in E4M3. With op = scaled_matmul:
///   c[m, n] = sum over blocks j of 128 along K, ascending, of a.scale[m, j] b.scale[n, j] P_j[m, n],
///   P_j = sum over the block of a.code[m, k] b.code[n, k]
/// On the CPU codes' products are exact and all sums are f32, so the order of K within a block is that of the f32 GEMM.
/// On a GPU tensor cores make P_j, with fewer bits than f32, and add it in f32 (docs/numerics.md).
///   Forward: a = x by vectors, b = the weight by squares. Data gradient: a = dy by vectors, b = the weight turned, by
///   squares. Weight gradient: a = dy turned, b = x turned, both by vectors. a and b may not both be by squares.
/// Throws ShapeError. Throws BackendError on a GPU that is no Hopper (compute capability 9.0), with a cuBLASLt before
/// 12.9, and for sizes that it has no kernel for. Its rules: K in multiples of 16, N of 8, M of 4.
struct ScaledMatmul {
  Operand a, b;  // in   [M, K], [N, K]
  Tensor c;      // out  [M, N] f32, bf16 or f16
  Write write = Write::overwrite;
  SmMargin sm_margin = SmMargin::none;
};
void scaled_matmul(Exec& ex, const ScaledMatmul& args);

/// Why scaled_matmul() throws BackendError for these arguments; empty: it runs. While an Exec records, sizes alone do
/// not count.
std::string why_no_scaled_matmul(Exec& ex, const ScaledMatmul& args);

}  // namespace megalith::ops
