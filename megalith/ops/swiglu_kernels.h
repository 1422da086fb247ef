#pragma once
#include "megalith/ops/swiglu.h"

namespace megalith::ops {

// gate_up, dgate_up: (T, F, 2) : (2 F, 2, 1).  y, dy: (T, F) : (F, 1).

namespace cpu {
void swiglu(const Swiglu& args);
void swiglu_backward(const SwigluBackward& args);
}  // namespace cpu

namespace cuda {
void swiglu(Stream stream, const Swiglu& args);
void swiglu_backward(Stream stream, const SwigluBackward& args);
}  // namespace cuda

}  // namespace megalith::ops
