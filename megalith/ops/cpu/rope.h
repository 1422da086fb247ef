#pragma once
#include "megalith/ops/rope.h"

namespace megalith::ops::cpu {

template <class T>
void rope_table(const RopeFrequencies& frequencies, const Tensor& table);
template <class T>
void rope(const Rope& args);

}  // namespace megalith::ops::cpu
