#pragma once
#include "megalith/ops/rope.h"

namespace megalith::ops::cuda {

void rope_table(Stream stream, const RopeFrequencies& frequencies, const Tensor& table);
void rope(Stream stream, const Rope& args);

}  // namespace megalith::ops::cuda
