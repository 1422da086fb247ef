#pragma once
#include "megalith/ops/gated_sum.h"

namespace megalith::ops::cuda {

void gated_sum(Stream stream, const GatedSum& args);
void gated_sum_backward(Stream stream, const GatedSumBackward& args);

}  // namespace megalith::ops::cuda
