#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

/// What masked numbers become: finite in every dtype, and so low that a softmax over it and usual numbers is 0 there.
inline constexpr double kMaskedNumber = -30000;

/// z[r, c] = kMaskedNumber for c >= lengths[r % B]: rows of numbers of a sample's tokens, without its padding.
struct MaskColumns {
  Tensor z;        // in, out  [R, S], R a multiple of B
  Tensor lengths;  // in       [B] i32
};
void mask_columns(Exec& ex, const MaskColumns& args);

}  // namespace megalith::ops
