#pragma once
#include <string_view>

#include "megalith/ops/group_rows.h"
#include "megalith/runtime/exec.h"

namespace megalith::ops {

// Permutes tokens to rows of their experts and back. A pair (t, k) is the k-th choice of token t, number t K + k. It
// has one row or, where it was dropped, none. Rows lie together by expert, in the order of their pairs. Maps are made
// once and both directions read them: the gradient of a permutation is a sum by its map, and the reverse.

inline constexpr Index kMaxChoices = 1024;  ///< largest K

// What a map has in place of a number.
inline constexpr std::int32_t kZeroRow = -1;    ///< a row of zeros: it fills up a group. A pair that has no row
inline constexpr std::int32_t kUnusedRow = -2;  ///< a row after the last group, which is left as it is

/// Throws ShapeError, which names `op`, unless maps can hold K = top_k choices of this many tokens.
void expect_choices(Index tokens, Index top_k, std::string_view op);

/// The row of every pair, the pair of every row, and the rows of every expert.
struct BuildRows {
  Tensor experts;    // in   [T, K] i32; -1: a pair without a row
  GroupRows groups;  // out  of the E experts
  Tensor row_of;     // out  [T, K] i32
  Tensor pair_of;    // out  [M] i32
  /// 0: as many rows as chose the expert, and M = capacity_of_groups(T K, E, alignment). Otherwise every expert has
  /// this many rows, and M is E times that, rounded up to the alignment. Pairs beyond them have no row, rows without a
  /// pair are zeros.
  Index rows_per_expert = 0;
};
/// M.
Index rows_to_build(Index pairs, Index experts, Index rows_per_expert, Index alignment);
/// Throws InputError on the CPU for an expert outside [-1, E); on a GPU such a pair has no row.
void build_rows(Exec& ex, const BuildRows& args);

/// rows[r] = x[t] of the row's pair (t, k); zeros for kZeroRow. Rows of kUnusedRow are left as they are.
struct PermuteRows {
  Tensor x, pair_of;   // in   [T, H], [M] i32
  Tensor row_of = {};  // in   [T, K] i32, or undefined: the inverse of pair_of. With it a GPU reads a row of x once
  Tensor rows;         // out  [M, H]
  Index top_k = 1;
};
void permute_rows(Exec& ex, const PermuteRows& args);

/// y[t] = sum over k ascending of weights[t, k] rows[row_of[t, k]], without pairs that have no row. It is summed in f32
/// (f64) and rounded once. Undefined weights count as 1, which gives the backward pass of permute_rows.
struct SumRows {
  Tensor rows, row_of;  // in   [M, H], [T, K] i32
  Tensor weights;       // in   [T, K] f32 (f64 for f64), or undefined
  Tensor y;             // out  [T, H]
};
void sum_rows(Exec& ex, const SumRows& args);

}  // namespace megalith::ops
