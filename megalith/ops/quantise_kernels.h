#pragma once
#include "megalith/ops/quantise.h"

namespace megalith::ops {

// x (R, C) : (C, 1).  straight.values (R, C) : (C, 1), turned.values (C, R) : (R, 1).  The scales of an operand [R, K]:
// vectors (K / 128, R) : (R, 1), squares (R / 128, K / 128) : (S, 1), S = K / 128 rounded up to kScaleStride.

/// cuBLASLt's rule for the rows of the scales of squares.
inline constexpr Index kScaleStride = 4;

namespace cpu {
void quantise(const Quantise& args);
}  // namespace cpu

namespace cuda {
void quantise(Stream stream, const Quantise& args);
}  // namespace cuda

}  // namespace megalith::ops
