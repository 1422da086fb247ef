#pragma once
#include "megalith/ops/gated_sum.h"

namespace megalith::ops::cpu {

template <class T>
void gated_sum(const GatedSum& args);
template <class T>
void gated_sum_backward(const GatedSumBackward& args);

}  // namespace megalith::ops::cpu
