#pragma once
#include "megalith/ops/rope.h"

namespace megalith::ops {

// qkv: (T, G, A/G + 2, 2, D/2) : ((A + 2G) D, (A/G + 2) D, D, D/2, 1): the fourth index is that within a turned pair.
// In parts: q (T, A, 2, D/2) : ((A + 2G) D, D, D/2, 1), k and v (T, G, 2, D/2) with these strides, A D and (A + G) D
// on. table: (P, 2, D/2) : (D, D/2, 1).  positions: (T) : (1).

namespace cpu {
void rope_table(const RopeFrequencies& frequencies, const Tensor& table);
void rope(const Rope& args);
}  // namespace cpu

namespace cuda {
void rope_table(Stream stream, const RopeFrequencies& frequencies, const Tensor& table);
void rope(Stream stream, const Rope& args);
}  // namespace cuda

}  // namespace megalith::ops
