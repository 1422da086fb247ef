#pragma once
#include "megalith/ops/quantise.h"
#include "megalith/ops/rows.h"

namespace megalith::ops {

/// Rows of experts, rounded to E4M3 while they are gathered: their 16-bit numbers need not go to memory.
///   rows[r] = x[t] of the row's pair (t, k); zeros for kZeroRow
/// Bits are those of permute_rows() followed by quantise() with the groups of pair_of, whose alignment is kScaleBlock.
/// Where the first of 128 rows, counted from a multiple of 128, is of kUnusedRow, these rows are left as they are in
/// all results. Other rows of kUnusedRow count as zeros. Scales are ScaleForm::f32, blocks are vectors. T, M and H may
/// be 0. Reads a row of x for each of its rows, from the L2 cache of a GPU where 128 columns of x have room there.
/// Writes 1 byte per element of the rows and form, and the rows themselves where they are defined. Throws ShapeError.
struct QuantiseRows {
  Tensor x, pair_of;      // in   [T, H] f32, bf16 or f16, [M] i32 (BuildRows)
  Tensor rows = {};       // out  [M, H], or undefined: it is not written
  Operand straight = {};  // out  [M, H]; it or `turned` may be undefined
  Operand turned = {};    // out  [H, M]
  Index top_k = 1;        // K
};
void quantise_rows(Exec& ex, const QuantiseRows& args);

}  // namespace megalith::ops
