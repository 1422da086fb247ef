#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

// Permutes tokens to rows of their experts and back. A pair (t, k) is the k-th choice of token t, number t K + k. It
// has one row or, where it was dropped, none. Rows lie together by expert, in the order of their pairs. Maps are made
// once and both directions read them: the gradient of a permutation is a sum by its map, and the reverse.

inline constexpr Index kMaxChoices = 1024;        ///< largest K
inline constexpr Index kMaxExpertsOfRows = 1024;  ///< largest E

/// The row of every pair, and the pair of every row. pair_of is -1 for rows without a pair.
struct BuildRows {
  Tensor experts;  // in   [T, K] i32; -1: a pair without a row
  Tensor counts;   // out  [E] i64, rows of each expert
  Tensor offsets;  // out  [E] i64, its first row
  Tensor row_of;   // out  [T, K] i32
  Tensor pair_of;  // out  [M] i32
  /// 0: the rows of an expert begin where the previous expert's end, and M = T K. Otherwise every expert has this many
  /// rows of its own, and M is E times that. Pairs beyond them have no row.
  Index rows_per_expert = 0;
};
/// Throws InputError on the CPU for an expert outside [-1, E); on a GPU such a pair has no row.
void build_rows(Exec& ex, const BuildRows& args);

/// What becomes of rows without a pair. GEMMs over all rows read them, others do not.
enum class UnusedRows : std::uint8_t { leave, zero };

/// rows[r] = x[t] of the row's pair (t, k).
struct PermuteRows {
  Tensor x, pair_of;  // in   [T, H], [M] i32
  Tensor rows;        // out  [M, H]
  Index top_k = 1;
  UnusedRows unused = UnusedRows::leave;
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

/// d_rows[r] = weight dy[t] of the row's pair (t, k). d_weights[t, k] = the dot product of dy[t] and the pair's row, 0
/// without one. Either may be left out. d_rows may be rows.
struct SumRowsBackward {
  Tensor dy, rows;         // in   [T, H], [M, H]; rows is read for d_weights alone
  Tensor row_of, pair_of;  // in   [T, K], [M] i32
  Tensor weights;          // in   [T, K] f32 (f64 for f64), read for d_rows alone
  Tensor d_rows;           // out  [M, H] or undefined
  Tensor d_weights;        // out  [T, K] f32 (f64 for f64) or undefined
  UnusedRows unused = UnusedRows::leave;
};
void sum_rows_backward(Exec& ex, const SumRowsBackward& args);

}  // namespace megalith::ops
