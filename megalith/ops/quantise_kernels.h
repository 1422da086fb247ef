#pragma once
#include "megalith/ops/quantise.h"

namespace megalith::ops {

// x (R, C) : (C, 1).  straight.values (R, C) : (C, 1), turned.values (C, R) : (R, 1).  The scales of an operand [R, K]:
// vectors (K / 128, R) : (R, 1), squares (R / 128, K / 128) : (S, 1), S = K / 128 rounded up to kScaleStride.

/// cuBLASLt's rule for the rows of the scales of squares.
inline constexpr Index kScaleStride = 4;

/// Scratch for the sums of the columns of a matrix [rows, columns], (row_blocks(R), C) : (C, 1); undefined unless they
/// are wanted.
Tensor square_column_sums(Exec& ex, const Tensor& column_sums, Index rows);

namespace cpu {
void quantise(const Quantise& args, const Tensor& sum_parts);
}  // namespace cpu

namespace cuda {
void quantise(Stream stream, const Quantise& args, const Tensor& sum_parts);
}  // namespace cuda

}  // namespace megalith::ops
