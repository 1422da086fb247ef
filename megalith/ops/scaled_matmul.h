#pragma once
#include <string>
#include <string_view>

#include "megalith/ops/matmul.h"
#include "megalith/ops/quantise.h"

namespace megalith::ops {

/// What computes scaled_matmul() on a GPU. library: cuBLASLt's block scaling, by its first choice unless another
/// algorithm was chosen. own: our kernel for Hopper, in the form that is expected to be the faster one. The last two
/// are its forms, by the columns of a tile. chosen: one of all these, as for any GEMM (gemm_chooser.h). Both forms give
/// the same bits, in any number of rows.
enum class ScaledKernel : std::uint8_t { chosen, library, own, tiles_128, tiles_192 };
inline constexpr int kScaledKernels = 5;
/// "chosen", "library", "own", "128", "192"
std::string_view name_of(ScaledKernel kernel);

/// c = a b^T, or c += with Write::accumulate, of matrices in E4M3. With op = scaled_matmul:
///   c[m, n] = bias[n] + sum over blocks j of 128 along K, ascending, of a.scale[m, j] b.scale[n, j] P_j[m, n],
///   P_j = sum over the block of a.code[m, k] b.code[n, k]
/// On the CPU codes' products are exact and all sums are f32, so the order of K within a block is that of the f32 GEMM.
/// On a GPU tensor cores make P_j, with fewer bits than f32, and add it in f32 (docs/numerics.md).
///   Forward: a = x by vectors, b = the weight by squares. Data gradient: a = dy by vectors, b = the weight turned, by
///   squares. Weight gradient: a = dy turned, b = x turned, both by vectors. a and b may not both be by squares.
/// Throws ShapeError. Throws BackendError on a GPU that is no Hopper (compute capability 9.0), and for arguments that
/// the kernel does not take. K in multiples of 16, N of 8 and M of 4 are rules of all. The library is cuBLASLt 12.9 or
/// later. Our kernel needs a by vectors and c in bf16 or f32, adds to f32 only, and has a bias for bf16 only. Where the
/// kernel has no bias, one more pass adds it to c, which is rounded twice then.
struct ScaledMatmul {
  Operand a, b;      // in   [M, K], [N, K]
  Tensor bias = {};  // in   [N] as c, or undefined: none. Needs Write::overwrite
  Tensor c;          // out  [M, N] f32, bf16 or f16
  Write write = Write::overwrite;
  SmMargin sm_margin = SmMargin::none;
  ScaledKernel kernel = ScaledKernel::chosen;
};
void scaled_matmul(Exec& ex, const ScaledMatmul& args);

/// Why scaled_matmul() throws BackendError for these arguments; empty: it runs. While an Exec records, sizes alone do
/// not count.
std::string why_no_scaled_matmul(Exec& ex, const ScaledMatmul& args);

}  // namespace megalith::ops
