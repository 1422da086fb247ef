#pragma once
#include "megalith/ops/mask_columns.h"

namespace megalith::ops {

// z: (R, S) : (S, 1).  lengths: (B) : (1).

namespace cpu {
void mask_columns(const MaskColumns& args);
}  // namespace cpu

namespace cuda {
void mask_columns(Stream stream, const MaskColumns& args);
}  // namespace cuda

}  // namespace megalith::ops
