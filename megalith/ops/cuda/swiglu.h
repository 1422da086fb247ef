#pragma once
#include "megalith/ops/swiglu.h"

namespace megalith::ops::cuda {

void swiglu(Stream stream, const Swiglu& args);
void swiglu_backward(Stream stream, const SwigluBackward& args);

}  // namespace megalith::ops::cuda
