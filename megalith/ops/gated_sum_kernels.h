#pragma once
#include "megalith/ops/gated_sum.h"

namespace megalith::ops {

// routed, shared, y, dy, d_shared: (T, H) : (H, 1).  gate, d_gate: (T) : (1).

namespace cpu {
void gated_sum(const GatedSum& args);
void gated_sum_backward(const GatedSumBackward& args);
}  // namespace cpu

namespace cuda {
void gated_sum(Stream stream, const GatedSum& args);
void gated_sum_backward(Stream stream, const GatedSumBackward& args);
}  // namespace cuda

}  // namespace megalith::ops
