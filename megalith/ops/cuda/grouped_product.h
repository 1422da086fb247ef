#pragma once
#include "megalith/ops/matmul.h"

// The GEMMs of experts in one kernel of our own, for Hopper GPUs: rows lie together by group, and each group has a
// weight. The sizes of groups stay on the device, so an op may be captured into a graph and replayed with others.

namespace megalith::ops::cuda {

/// Groups begin at multiples of this many rows, so no tile crosses one.
inline constexpr Index kGroupedTileRows = 128;

/// Which rows are whose. begin[g] is a multiple of kGroupedTileRows; begin[g] + rows[g] is at most the rows of the
/// operands. Rows of an input from there up to the next multiple must be zeros. So are then those rows of a result.
/// Other rows are neither read nor written. The kernels rely on this. As a guard they clamp begin and rows to the
/// operands (clamped_group.cuh): wrong numbers give wrong results, and no write outside.
/// Without begin and rows all rows are of one group, whatever their number.
struct TileGroups {
  Tensor begin, rows;           // [G] i32, in device memory, or both undefined
  Index first = 0, count = -1;  ///< the op is for groups [first, first + count); -1: all from first on
};

/// Queries the facts about the GPU that the kernels need, before the first step.
void prepare_grouped_product(Exec& ex);
/// Whether the ops below run, by the GPU, the dtype and the rows of weights. They return false and do nothing where
/// this is false, or where an address is no multiple of 16.
bool can_run_grouped_product(Exec& ex, DType dtype, Index rows_of_weight, Index columns_of_weight);

// Operands are bf16 or f16, sums are f32 and rounded once. A row's bits follow from that row and its group's weight
// alone. The bits are the same every time. sm_margin SMs stay free for other kernels.

/// y_g = x_g w_g^T
struct TiledForward {
  Tensor x, w;  // in   [M, K], [G, N, K]
  Tensor y;     // out  [M, N]
};
bool grouped_product(Exec& ex, Stream stream, const TiledForward& args, const TileGroups& groups, int sm_margin);

/// How the units of an MLP come from the products with its weight. gated: F units from 2 F products, which are gate and
/// up of a unit in turn, h = silu(gate) up. gelu: F from F, h = gelu(z).
enum class TiledActivation { gated, gelu };

/// z_g = x_g w_g^T and the activation: gated of the rounded z, gelu of the sums. N = 2 F where gated, else F.
struct TiledUp {
  Tensor x, w;  // in   [M, K], [G, N, K]; F % 8 == 0 where gated
  Tensor z;     // out  [M, N], or undefined
  Tensor h;     // out  [M, F]
  TiledActivation activation = TiledActivation::gated;
};
bool grouped_product(Exec& ex, Stream stream, const TiledUp& args, const TileGroups& groups, int sm_margin);

/// dx_g = dy_g w_g
struct TiledInputGrad {
  Tensor dy, w;  // in   [M, N], [G, N, K]
  Tensor dx;     // out  [M, K]
};
bool grouped_product(Exec& ex, Stream stream, const TiledInputGrad& args, const TileGroups& groups, int sm_margin);

/// What precedes the down product, backward: dh_g = dy_g w_g (not stored), with h of z and p a row's weight:
/// dz = p activation'(z) dh, ph = p h, dp = the sum of dh h over a row. All from f32, rounded once.
struct TiledDownInputGrad {
  Tensor dy, w;       // in   [M, H], [G, H, F]
  Tensor z;           // in   [M, 2 F] where gated, else [M, F]
  Tensor p = {};      // in   [M] f32, or undefined: 1
  Tensor dz;          // out  as z; may be z
  Tensor ph = {};     // out  [M, F], or undefined
  Tensor dp = {};     // out  [M] f32, or undefined, as without TileGroups::begin; then parts is not needed
  Tensor parts = {};  // scratch  f32 [M, tiled_dp_parts(F)]: sums over tiles, which dp adds in order
  TiledActivation activation = TiledActivation::gated;
};
bool grouped_product(Exec& ex, Stream stream, const TiledDownInputGrad& args, const TileGroups& groups, int sm_margin);
inline constexpr Index kTiledDpUnits = 256;  ///< that a part sums up
inline Index tiled_dp_parts(Index units) { return ceil_div(units, kTiledDpUnits); }

/// dw_g = dy_g^T x_g, or dw_g +=, over the group's rows in ascending order. For an empty group, dw_g keeps its bits
/// where it accumulates, and is 0 where it is overwritten.
struct TiledWeightGrad {
  Tensor dy, x;  // in   [M, N], [M, K]
  Tensor dw;     // out  [G, N, K]; f32, or x's dtype where it is overwritten
  Write write = Write::accumulate;
  /// out  f64 [G tiled_squares(N, K)], or undefined. For dw in f32 that is overwritten: sums of the squares of all its
  /// elements, whose sum is that of dw. Each sums 16 rows of a tile. Those of groups that are left out stay.
  Tensor squares = {};
};
inline constexpr Index kTiledSquares = 8;  ///< of a tile of 128 x 256 elements
inline Index tiled_squares(Index n, Index k) { return ceil_div(n, 128) * ceil_div(k, 256) * kTiledSquares; }
bool grouped_product(Exec& ex, Stream stream, const TiledWeightGrad& args, const TileGroups& groups, int sm_margin);

}  // namespace megalith::ops::cuda
