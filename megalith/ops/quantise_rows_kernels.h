#pragma once
#include "megalith/ops/quantise_rows.h"

namespace megalith::ops {

// All matrices (R, C) : (C, 1); operands as in quantise_kernels.h.  pair_of (M) : (1).

namespace cpu {
void quantise_rows(const QuantiseRows& args);
}  // namespace cpu

namespace cuda {
void quantise_rows(Stream stream, const QuantiseRows& args);
}  // namespace cuda

}  // namespace megalith::ops
