#pragma once
#include "megalith/ops/swiglu.h"

namespace megalith::ops::cpu {

template <class T>
void swiglu(const Swiglu& args);
template <class T>
void swiglu_backward(const SwigluBackward& args);

}  // namespace megalith::ops::cpu
